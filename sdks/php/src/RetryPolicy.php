<?php

declare(strict_types=1);

namespace Posthouse;

/**
 * How often a call is tried, and how it backs off. RetryPolicy::none() never tries again.
 *
 * A call never takes longer than `totalSecondsMax`, all its attempts and waits together: if the next wait doesn't fit
 * into what is left, the exception is thrown at once.
 */
final class RetryPolicy
{
    public function __construct(
        public readonly int $attemptsMax = 4,
        public readonly int|float $baseSeconds = 0.5,
        public readonly int|float $factor = 2,
        public readonly int|float $capSeconds = 8,
        public readonly int|float $totalSecondsMax = 30,
    ) {
        if ($attemptsMax < 1) {
            throw new InvalidArgumentException('attemptsMax counts the first attempt, too, and must be at least 1');
        }
        Checks::seconds($baseSeconds, 'baseSeconds');
        Checks::seconds($factor, 'factor');
        Checks::seconds($capSeconds, 'capSeconds');
        if ($totalSecondsMax !== INF) {
            Checks::seconds($totalSecondsMax, 'totalSecondsMax');
        }
    }

    public static function none(): self
    {
        return new self(attemptsMax: 1, totalSecondsMax: INF);
    }

    /** The wait after the attempt of that number, from 1; `random` is in [0, 1). */
    public function waitSeconds(int $attempt, float $random, ?float $retryAfter): float
    {
        $backedOff = Backoff::seconds($this->baseSeconds, $this->factor, $this->capSeconds, $attempt, $random);

        return max($backedOff, $retryAfter ?? 0.0);
    }
}
