<?php

declare(strict_types=1);

namespace Posthouse;

/** Webhooks: verifies that a request is the service's own, and parses it. */
final class Webhook
{
    public const SIGNATURE_HEADER = 'Service-Signature';
    public const TOLERANCE_SECONDS = 300;

    /**
     * The event, if the request is the service's own.
     *
     * A request is valid for `tolerance` seconds before and after the time it was signed, to prevent replays.
     *
     * @param string $rawBody the request's body as it came, before anything parsed it
     * @param string|null $header the value of Service-Signature
     * @param string $secret the webhook's, with its `whsec_`
     * @param int|float|null $now Unix seconds, if not the time that it is
     * @throws WebhookVerificationException
     */
    public static function verify(
        string $rawBody,
        ?string $header,
        #[\SensitiveParameter] string $secret,
        int|float $tolerance = self::TOLERANCE_SECONDS,
        int|float|null $now = null,
    ): Event {
        if ($secret === '') {
            throw new InvalidArgumentException("the webhook's secret is empty; anybody could sign with it");
        }
        Checks::seconds($tolerance, 'the tolerance');
        [$signedAt, $signatures] = self::parsed($header ?? '');
        $expected = hash_hmac('sha256', "{$signedAt}.{$rawBody}", $secret);
        $matching = array_filter($signatures, static fn (string $one): bool => hash_equals($expected, $one));
        if ($matching === []) {
            throw new WebhookVerificationException(
                'the signature is not that of this body and secret',
                WebhookReason::WrongSignature,
            );
        }
        if (abs(($now ?? microtime(true)) - (int) $signedAt) > $tolerance) {
            throw new WebhookVerificationException(
                sprintf('it was signed more than %g s before or after now', $tolerance),
                WebhookReason::OutsideTolerance,
            );
        }

        return self::event($rawBody);
    }

    /**
     * The time and the signatures of the header, as they stand in it.
     *
     * @return array{string, list<string>}
     */
    private static function parsed(string $header): array
    {
        $times = $signatures = [];
        foreach (explode(',', $header) as $field) {
            if (preg_match('/\A([^=,\s]+)=([^,\s]*)\z/', $field, $parts) !== 1) {
                throw self::malformedHeader();
            }
            [, $name, $value] = $parts;
            if ($name === 't') {
                $times[] = $value;
            } elseif ($name === 'v1') {
                $signatures[] = $value;
            }
        }
        $isRight = count($times) === 1 && preg_match('/\A[0-9]{1,12}\z/', $times[0]) === 1 && $signatures !== []
            && count(preg_grep('/\A[0-9a-f]{64}\z/', $signatures) ?: []) === count($signatures);
        if (!$isRight) {
            throw self::malformedHeader();
        }

        return [$times[0], $signatures];
    }

    private static function malformedHeader(): WebhookVerificationException
    {
        return new WebhookVerificationException(
            sprintf('the header %s is not of the form t=…,v1=…', self::SIGNATURE_HEADER),
            WebhookReason::MalformedHeader,
        );
    }

    private static function event(string $rawBody): Event
    {
        $fields = Answers::object($rawBody) ?? [];
        $id = Answers::text($fields, 'id');
        $type = Answers::text($fields, 'type');
        $createdAt = Answers::moment($fields['created_at'] ?? null);
        if ($id === null || $type === null || $createdAt === null || !Answers::hasObject($rawBody, 'data')) {
            throw new WebhookVerificationException('the body is no event', WebhookReason::MalformedBody);
        }

        return new Event($id, $type, $createdAt, EventData::fromArray(Answers::elements($fields, 'data')));
    }
}
