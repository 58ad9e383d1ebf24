<?php

declare(strict_types=1);

namespace Posthouse;

/** A message and its status: `queued`, `delivered`, `partial` or `failed`. */
final class Message
{
    /** @param list<Recipient> $recipients */
    public function __construct(
        public readonly string $id,
        public readonly string $status,
        public readonly string $source,
        public readonly string $from,
        public readonly string $subject,
        public readonly string $billingStatus,
        public readonly int $recipientCount,
        public readonly int $creditsReserved,
        public readonly ?\DateTimeImmutable $createdAt,
        public readonly array $recipients,
        public readonly string $requestId,
    ) {
    }

    public function isFinal(): bool
    {
        return $this->status !== 'queued';
    }

    /**
     * @internal
     * @param array<array-key, mixed> $given
     */
    public static function fromArray(array $given): self
    {
        return new self(
            id: Answers::text($given, 'id') ?? '',
            status: Answers::text($given, 'status') ?? '',
            source: Answers::text($given, 'source') ?? '',
            from: Answers::text($given, 'from') ?? '',
            subject: Answers::text($given, 'subject') ?? '',
            billingStatus: Answers::text($given, 'billing_status') ?? '',
            recipientCount: Answers::number($given, 'recipient_count') ?? 0,
            creditsReserved: Answers::number($given, 'credits_reserved') ?? 0,
            createdAt: Answers::moment($given['created_at'] ?? null),
            recipients: array_map(Recipient::fromArray(...), Answers::objects($given, 'recipients')),
            requestId: Answers::text($given, 'request_id') ?? '',
        );
    }
}
