<?php

declare(strict_types=1);

namespace Posthouse;

/** The time as the system tells it. */
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
