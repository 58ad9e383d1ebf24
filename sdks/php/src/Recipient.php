<?php

declare(strict_types=1);

namespace Posthouse;

/** An address of a message and its status: `queued`, `deferred`, `delivered`, `bounced` or `failed`. */
final class Recipient
{
    public function __construct(
        public readonly string $id,
        public readonly string $email,
        public readonly string $status,
        public readonly string $billingStatus,
        public readonly int $attemptCount,
        public readonly ?int $lastSmtpCode,
        public readonly ?string $lastSmtpResponse,
        public readonly ?\DateTimeImmutable $deliveredAt,
        public readonly ?\DateTimeImmutable $bouncedAt,
    ) {
    }

    /**
     * @internal
     * @param array<array-key, mixed> $given
     */
    public static function fromArray(array $given): self
    {
        return new self(
            id: Answers::text($given, 'id') ?? '',
            email: Answers::text($given, 'email') ?? '',
            status: Answers::text($given, 'status') ?? '',
            billingStatus: Answers::text($given, 'billing_status') ?? '',
            attemptCount: Answers::number($given, 'attempt_count') ?? 0,
            lastSmtpCode: Answers::number($given, 'last_smtp_code'),
            lastSmtpResponse: Answers::text($given, 'last_smtp_response'),
            deliveredAt: Answers::moment($given['delivered_at'] ?? null),
            bouncedAt: Answers::moment($given['bounced_at'] ?? null),
        );
    }
}
