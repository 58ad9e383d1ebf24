<?php

declare(strict_types=1);

namespace Posthouse;

/** The current time. */
interface Clock
{
    /** Unix seconds. */
    public function now(): float;

    /** Seconds that never run backwards. */
    public function monotonic(): float;
}
