<?php

declare(strict_types=1);

/** Time that stands still but for sleeps. */
final class FakeTime implements Posthouse\Clock
{
    /** @var list<float> */
    public array $sleeps = [];

    public function __construct(private float $at)
    {
    }

    public function now(): float
    {
        return $this->at;
    }

    public function monotonic(): float
    {
        return $this->at;
    }

    public function sleep(float $seconds): void
    {
        $this->sleeps[] = $seconds;
        $this->at += $seconds;
    }
}
