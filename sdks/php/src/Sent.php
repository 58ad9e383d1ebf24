<?php

declare(strict_types=1);

namespace Posthouse;

/** An accepted email: queued, not yet delivered. `replayed`: its key was used before, and this is that email. */
final class Sent
{
    /**
     * @param list<string> $to
     * @param list<string> $cc
     * @param list<string> $bcc
     * @param array<string, string> $headers
     * @param list<string> $tags
     * @param list<SentAttachment> $attachments
     */
    public function __construct(
        public readonly string $id,
        public readonly string $status,
        public readonly string $source,
        public readonly string $requestId,
        public readonly string $from,
        public readonly array $to,
        public readonly array $cc,
        public readonly array $bcc,
        public readonly ?string $replyTo,
        public readonly string $subject,
        public readonly string $billingStatus,
        public readonly int $recipientCount,
        public readonly int $creditsReserved,
        public readonly array $headers,
        public readonly array $tags,
        public readonly array $attachments,
        public readonly bool $replayed,
    ) {
    }

    /**
     * @internal
     * @param array<array-key, mixed> $given
     */
    public static function fromArray(array $given, bool $replayed): self
    {
        return new self(
            id: Answers::text($given, 'id') ?? '',
            status: Answers::text($given, 'status') ?? '',
            source: Answers::text($given, 'source') ?? '',
            requestId: Answers::text($given, 'request_id') ?? '',
            from: Answers::text($given, 'from') ?? '',
            to: Answers::texts($given, 'to'),
            cc: Answers::texts($given, 'cc'),
            bcc: Answers::texts($given, 'bcc'),
            replyTo: Answers::text($given, 'reply_to'),
            subject: Answers::text($given, 'subject') ?? '',
            billingStatus: Answers::text($given, 'billing_status') ?? '',
            recipientCount: Answers::number($given, 'recipient_count') ?? 0,
            creditsReserved: Answers::number($given, 'credits_reserved') ?? 0,
            headers: array_filter(Answers::elements($given, 'headers'), 'is_string'),
            tags: Answers::texts($given, 'tags'),
            attachments: array_map(SentAttachment::fromArray(...), Answers::objects($given, 'attachments')),
            replayed: $replayed,
        );
    }
}
