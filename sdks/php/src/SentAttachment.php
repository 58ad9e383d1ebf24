<?php

declare(strict_types=1);

namespace Posthouse;

/** What the service says of an attachment it took; `size` is in bytes. */
final class SentAttachment
{
    public function __construct(
        public readonly string $filename,
        public readonly string $contentType,
        public readonly int $size,
        public readonly ?string $contentId,
    ) {
    }

    /**
     * @internal
     * @param array<array-key, mixed> $given
     */
    public static function fromArray(array $given): self
    {
        return new self(
            filename: Answers::text($given, 'filename') ?? '',
            contentType: Answers::text($given, 'content_type') ?? '',
            size: Answers::number($given, 'size') ?? 0,
            contentId: Answers::text($given, 'content_id'),
        );
    }
}
