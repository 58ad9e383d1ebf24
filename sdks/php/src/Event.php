<?php

declare(strict_types=1);

namespace Posthouse;

/** `email.delivered`, `email.bounced`, `email.failed` or `webhook.test`. The same `id` may come more than once. */
final class Event
{
    public function __construct(
        public readonly string $id,
        public readonly string $type,
        public readonly \DateTimeImmutable $createdAt,
        public readonly EventData $data,
    ) {
    }
}
