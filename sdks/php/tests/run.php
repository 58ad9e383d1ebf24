<?php

declare(strict_types=1);

// Runs every method test… of every class …Test in this folder: PHP has no test runner of its own, and the library
// needs nothing that would have to be installed.

error_reporting(E_ALL);
set_error_handler(static function (int $level, string $text, string $file, int $line): bool {
    // What was silenced with @ is no error.
    if ((error_reporting() & $level) !== 0) {
        throw new ErrorException($text, 0, $level, $file, $line);
    }

    return false;
});

require __DIR__ . '/../autoload.php';
foreach (glob(__DIR__ . '/[A-Z]*.php') as $file) {
    require_once $file;
}

$passed = $skipped = 0;
$failures = [];
foreach (glob(__DIR__ . '/*Test.php') as $file) {
    $class = basename($file, '.php');
    foreach (preg_grep('/^test/', get_class_methods($class)) as $name) {
        try {
            (new $class())->{$name}();
            $passed++;
        } catch (Skipped $reason) {
            $skipped++;
            echo "{$class}::{$name} was skipped: {$reason->getMessage()}\n";
        } catch (Throwable $failure) {
            $failures[] = "{$class}::{$name}: {$failure}";
        }
    }
}
foreach ($failures as $failure) {
    echo "{$failure}\n\n";
}
printf("%d passed, %d failed, %d skipped\n", $passed, count($failures), $skipped);
exit($failures === [] ? 0 : 1);
