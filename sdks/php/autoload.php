<?php

declare(strict_types=1);

// Loads the library's classes where there is no Composer.
spl_autoload_register(static function (string $class): void {
    if (str_starts_with($class, 'Posthouse\\')) {
        $file = __DIR__ . '/src/' . strtr(substr($class, strlen('Posthouse\\')), '\\', '/') . '.php';
        if (is_file($file)) {
            require $file;
        }
    }
});
