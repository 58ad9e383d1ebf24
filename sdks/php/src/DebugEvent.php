<?php

declare(strict_types=1);

namespace Posthouse;

/** One attempt. `status` is null if there was no answer, `wait` is null if no attempt follows; times are in seconds. */
final class DebugEvent
{
    public function __construct(
        public readonly string $method,
        public readonly string $url,
        public readonly ?int $status,
        public readonly int $attempt,
        public readonly float $duration,
        public readonly ?float $wait,
    ) {
    }
}
