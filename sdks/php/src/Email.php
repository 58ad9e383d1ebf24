<?php

declare(strict_types=1);

namespace Posthouse;

/**
 * An email to send. Addresses are bare (`ada@example.com`) or with a name (`Ada <ada@example.com>`).
 *
 * One of text, html, template and attachments must be given, and a subject unless the template has one.
 */
final class Email
{
    /**
     * @param string|list<string> $to
     * @param string|list<string> $cc
     * @param string|list<string> $bcc
     * @param array<string, string|int|float|bool|null> $variables
     * @param array<string, string> $headers
     * @param string|list<string> $tags
     * @param list<Attachment> $attachments
     * @param ?\DateTimeInterface $sendAt it is sent then, and not before
     * @param array<string, string> $metadata for your own programs, never in the mail
     * @param ?string $content 'forget': no one can read it once it is accepted, and it is deleted after its result
     */
    public function __construct(
        public readonly string $from,
        public readonly string|array $to,
        public readonly ?string $subject = null,
        public readonly ?string $text = null,
        public readonly ?string $html = null,
        public readonly string|array $cc = [],
        public readonly string|array $bcc = [],
        public readonly ?string $replyTo = null,
        public readonly ?string $template = null,
        public readonly array $variables = [],
        public readonly array $headers = [],
        public readonly string|array $tags = [],
        public readonly array $attachments = [],
        public readonly ?\DateTimeInterface $sendAt = null,
        public readonly array $metadata = [],
        public readonly ?string $content = null,
    ) {
        foreach ($attachments as $one) {
            if (!$one instanceof Attachment) {
                throw new InvalidArgumentException('attachments are a list of Posthouse\Attachment');
            }
        }
    }

    /**
     * The body of the request, without what is empty.
     *
     * @return array<string, mixed>
     */
    public function toArray(): array
    {
        $fields = [
            'from' => $this->from,
            'to' => self::oneOrMany($this->to),
            'cc' => self::oneOrMany($this->cc),
            'bcc' => self::oneOrMany($this->bcc),
            'reply_to' => $this->replyTo,
            'subject' => $this->subject,
            'text' => $this->text,
            'html' => $this->html,
            'template' => $this->template,
            // As objects, so that they stay ones whatever their keys are.
            'variables' => $this->variables === [] ? null : (object) $this->variables,
            'headers' => $this->headers === [] ? null : (object) $this->headers,
            'tags' => self::oneOrMany($this->tags),
            'attachments' => array_map(
                static fn (Attachment $one): array => $one->toArray(),
                array_values($this->attachments),
            ),
            'send_at' => $this->sendAt === null ? null : self::utc($this->sendAt),
            'metadata' => $this->metadata === [] ? null : (object) $this->metadata,
            'content' => $this->content,
        ];

        return array_filter($fields, static fn (mixed $value): bool => !in_array($value, [null, '', []], true));
    }

    private static function utc(\DateTimeInterface $time): string
    {
        $utc = \DateTimeImmutable::createFromInterface($time)->setTimezone(new \DateTimeZone('UTC'));

        return $utc->format('Y-m-d\TH:i:s.v\Z');
    }

    /**
     * @param string|array<string> $value
     * @return string|list<string>
     */
    private static function oneOrMany(string|array $value): string|array
    {
        return is_string($value) ? $value : array_values($value);
    }
}
