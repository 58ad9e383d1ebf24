<?php

declare(strict_types=1);

namespace Posthouse;

/**
 * A text that is not printed: neither by var_dump, var_export, print_r or a cast to an array, nor by serialize.
 *
 * It isn't a property of the object at all: __debugInfo would hide one from some of these, not from all.
 *
 * @internal
 */
final class Secret
{
    /** @var \WeakMap<self, string>|null */
    private static ?\WeakMap $kept = null;

    public function __construct(#[\SensitiveParameter] string $text)
    {
        self::$kept ??= new \WeakMap();
        self::$kept[$this] = $text;
    }

    public function reveal(): string
    {
        return self::$kept[$this];
    }

    /** @return never */
    public function __serialize(): array
    {
        throw new \LogicException('a secret is not written down');
    }

    private function __clone()
    {
    }
}
