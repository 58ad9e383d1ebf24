<?php

declare(strict_types=1);

namespace Posthouse;

/**
 * The base of all exceptions of this library.
 *
 * `status`, `errorCode` and `requestId` are the service's, where it answered; quote `requestId` when you ask for help.
 * `retryAfter` is what it asked to wait, in seconds. getMessage() is all of it as text, `description` without the rest.
 */
abstract class PosthouseException extends \RuntimeException
{
    private const RETRYABLE_STATUSES = [429, 503];

    public function __construct(
        public readonly string $description,
        public readonly ?int $status = null,
        public readonly ?string $errorCode = null,
        public readonly ?string $requestId = null,
        public readonly ?float $retryAfter = null,
        ?\Throwable $previous = null,
    ) {
        $details = array_filter([$status, $errorCode, $requestId], static fn ($part): bool => $part !== null);
        $rest = $details === [] ? '' : ' (' . implode(', ', $details) . ')';
        parent::__construct($description . $rest, 0, $previous);
    }

    /** Whether the same call may succeed later. The client has retried it already, as its policy says. */
    public function isRetryable(): bool
    {
        return in_array($this->status, self::RETRYABLE_STATUSES, true)
            || $this->errorCode === 'idempotency_in_progress';
    }

    public function isInsufficientCredits(): bool
    {
        return $this->errorCode === 'insufficient_credits';
    }

    /** Whether the Idempotency-Key was used before, for another email. */
    public function isIdempotencyConflict(): bool
    {
        return $this->errorCode === 'idempotency_conflict';
    }
}
