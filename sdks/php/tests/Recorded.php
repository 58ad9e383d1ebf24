<?php

declare(strict_types=1);

use Posthouse\Answer;
use Posthouse\Request;

/** A transport of one's own. */
final class Recorded implements Posthouse\Transport
{
    /** @var list<Request> */
    public array $requests = [];

    public function __construct(private readonly Answer|Throwable $outcome)
    {
    }

    public function exchange(Request $request, float $timeoutSeconds): Answer
    {
        $this->requests[] = $request;

        return $this->outcome instanceof Answer ? $this->outcome : throw $this->outcome;
    }
}
