<?php

declare(strict_types=1);

namespace Posthouse;

/** The system time. */
final class SystemClock implements Clock
{
    public function now(): float
    {
        return microtime(true);
    }

    public function monotonic(): float
    {
        return hrtime(true) / 1e9;
    }
}
