<?php

declare(strict_types=1);

namespace Posthouse;

/** Which recipient of which message an event is about. `extra` has the fields that this version has no name for. */
final class EventData
{
    private const NAMES = [
        'email_id', 'recipient_id', 'to', 'from', 'subject', 'smtp_code', 'smtp_response', 'test',
    ];

    /** @param array<array-key, mixed> $extra */
    public function __construct(
        public readonly ?string $emailId = null,
        public readonly ?string $recipientId = null,
        public readonly ?string $to = null,
        public readonly ?string $from = null,
        public readonly ?string $subject = null,
        public readonly ?int $smtpCode = null,
        public readonly ?string $smtpResponse = null,
        public readonly bool $test = false,
        public readonly array $extra = [],
    ) {
    }

    /**
     * @internal
     * @param array<array-key, mixed> $given
     */
    public static function fromArray(array $given): self
    {
        return new self(
            emailId: Answers::text($given, 'email_id'),
            recipientId: Answers::text($given, 'recipient_id'),
            to: Answers::text($given, 'to'),
            from: Answers::text($given, 'from'),
            subject: Answers::text($given, 'subject'),
            smtpCode: Answers::number($given, 'smtp_code'),
            smtpResponse: Answers::text($given, 'smtp_response'),
            test: ($given['test'] ?? null) === true,
            extra: array_diff_key($given, array_flip(self::NAMES)),
        );
    }
}
