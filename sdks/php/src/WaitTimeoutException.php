<?php

declare(strict_types=1);

namespace Posthouse;

/** The message was still queued when the time was up; `last` is how it was last seen. */
final class WaitTimeoutException extends PosthouseException
{
    public function __construct(string $description, public readonly Message $last)
    {
        parent::__construct($description);
    }
}
