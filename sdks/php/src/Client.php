<?php

declare(strict_types=1);

namespace Posthouse;

/**
 * Sends email and reports its status.
 *
 * `credential` is an API key or token, or Credential::basic(username, password). `timeout` is for an attempt as a
 * whole, in seconds; `retryPolicy` says how often and how long a call is tried. `debug` is called after every attempt
 * with a DebugEvent, which has nothing secret in it. `transport` replaces the HTTP client: CurlTransport goes through a
 * proxy if it is given one.
 */
final class Client
{
    public const VERSION = '1.0.0-rc.1';
    public const ATTEMPT_SECONDS = 10;
    public const WAIT_SECONDS = 60;

    private readonly Setup $setup;

    /**
     * @param (callable(DebugEvent): mixed)|null $debug
     * @param (callable(float): mixed)|null $sleep takes seconds
     * @param (callable(): (int|float))|null $random returns a number from 0 up to, not including, 1
     */
    public function __construct(
        #[\SensitiveParameter] string|Credential $credential,
        #[\SensitiveParameter] string $baseUrl,
        int|float $timeout = self::ATTEMPT_SECONDS,
        ?RetryPolicy $retryPolicy = null,
        string $userAgentSuffix = '',
        ?Transport $transport = null,
        ?callable $debug = null,
        ?Clock $clock = null,
        ?callable $sleep = null,
        ?callable $random = null,
    ) {
        $known = is_string($credential) ? Credential::bearer($credential) : $credential;
        $suffix = Checks::userAgentSuffix($userAgentSuffix);
        $this->setup = new Setup(
            baseUrl: Checks::baseUrl($baseUrl),
            authorization: $known->authorization(),
            userAgent: rtrim('posthouse-php/' . self::VERSION . ' ' . $suffix),
            timeout: Checks::seconds($timeout, 'the time-out', mayBeZero: false),
            retryPolicy: $retryPolicy ?? new RetryPolicy(),
            transport: $transport ?? new CurlTransport(),
            debug: $debug === null ? null : \Closure::fromCallable($debug),
            clock: $clock ?? new SystemClock(),
            sleep: $sleep === null ? self::pause(...) : \Closure::fromCallable($sleep),
            random: $random === null ? self::chance(...) : \Closure::fromCallable($random),
        );
    }

    /**
     * The email is accepted and queued. With the same key and email it is never sent twice, for 24 hours.
     *
     * Without a key a new one is made for this call, and used for all of its attempts.
     *
     * @throws PosthouseException
     */
    public function send(Email $email, ?string $idempotencyKey = null): Sent
    {
        $key = $idempotencyKey === null ? self::uuid() : Checks::idempotencyKey($idempotencyKey);
        $headers = ['Content-Type' => 'application/json', 'Idempotency-Key' => $key];
        $body = Checks::json($email->toArray());
        [$answer, $fields] = (new Exchange($this->setup, 'POST', '/emails', 202, $headers, $body))->call();
        $replayed = strtolower($answer->headers['idempotent-replayed'] ?? '') === 'true';

        return Sent::fromArray($fields, $replayed);
    }

    /**
     * The message as it is now.
     *
     * @throws PosthouseException
     */
    public function get(string $messageId): Message
    {
        $path = '/emails/' . Checks::messageId($messageId);
        [, $fields] = (new Exchange($this->setup, 'GET', $path, 200))->call();

        return Message::fromArray($fields);
    }

    /**
     * The message when all its recipients have their result; WaitTimeoutException if that takes too long.
     *
     * @throws PosthouseException
     */
    public function wait(string $messageId, int|float $timeout = self::WAIT_SECONDS): Message
    {
        $clock = $this->setup->clock;
        $endsAt = $clock->monotonic() + Checks::seconds($timeout, "a wait's time-out");
        for ($poll = 1; ; $poll++) {
            $message = $this->get($messageId);
            if ($message->isFinal()) {
                return $message;
            }
            $left = $endsAt - $clock->monotonic();
            if ($left < Exchange::SECONDS_MIN) {
                throw new WaitTimeoutException(
                    sprintf('the message %s was still queued after %g s', $message->id, $timeout),
                    $message,
                );
            }
            ($this->setup->sleep)(min(Backoff::pollSeconds($poll, ($this->setup->random)()), $left));
        }
    }

    /** @return array{baseUrl: string} */
    public function __debugInfo(): array
    {
        return ['baseUrl' => $this->setup->baseUrl];
    }

    private static function pause(float $seconds): void
    {
        usleep((int) round($seconds * 1e6));
    }

    /** From the system's source, so that processes that were forked don't all wait equally long. */
    private static function chance(): float
    {
        return random_int(0, 2 ** 53 - 1) / 2 ** 53;
    }

    private static function uuid(): string
    {
        $bytes = random_bytes(16);
        $bytes[6] = chr(ord($bytes[6]) & 0x0f | 0x40);
        $bytes[8] = chr(ord($bytes[8]) & 0x3f | 0x80);

        return vsprintf('%s%s-%s-%s-%s-%s%s%s', str_split(bin2hex($bytes), 4));
    }
}
