<?php

declare(strict_types=1);

namespace Posthouse;

/** `headers` have their names in lower case; `body` may end after Answer::BYTES_MAX + 1 bytes. */
final class Answer
{
    /** An answer that is longer is not read to its end: no real one comes near. */
    public const BYTES_MAX = 1_048_576;

    /** @param array<string, string> $headers */
    public function __construct(
        public readonly int $status,
        public readonly array $headers,
        public readonly string $body,
    ) {
    }
}
