<?php

declare(strict_types=1);

namespace Posthouse;

/** The service could not be reached, or the connection ended before its answer was whole. */
final class ConnectionFailedException extends PosthouseException
{
    public function isRetryable(): bool
    {
        return true;
    }
}
