<?php

declare(strict_types=1);

namespace Posthouse;

/** The service did not answer in time. */
final class AttemptTimeoutException extends PosthouseException
{
    public function isRetryable(): bool
    {
        return true;
    }
}
