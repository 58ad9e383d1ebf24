<?php

declare(strict_types=1);

namespace Posthouse;

/**
 * One request, tried as often as the policy has it.
 *
 * @internal
 */
final class Exchange
{
    /** Less than this is no time at all. */
    public const SECONDS_MIN = 0.001;

    private readonly Request $request;

    /** @param array<string, string> $headers */
    public function __construct(
        private readonly Setup $setup,
        string $method,
        string $path,
        private readonly int $success,
        array $headers = [],
        ?string $body = null,
    ) {
        $common = ['Accept' => 'application/json', 'User-Agent' => $setup->userAgent];
        $url = $setup->baseUrl . $path;
        $this->request = new Request($method, $url, $common + $headers, $setup->authorization, $body);
    }

    /**
     * The first answer that is a success, and the object in it.
     *
     * @return array{Answer, array<array-key, mixed>}
     */
    public function call(): array
    {
        $setup = $this->setup;
        $endsAt = $setup->clock->monotonic() + $setup->retryPolicy->totalSecondsMax;
        for ($attempt = 1; ; $attempt++) {
            $beganAt = $setup->clock->monotonic();
            $answer = $error = null;
            $fields = [];
            try {
                $seconds = max(self::SECONDS_MIN, min($setup->timeout, $endsAt - $beganAt));
                $answer = $setup->transport->exchange($this->request, $seconds);
                $fields = strlen($answer->body) <= Answer::BYTES_MAX ? Answers::object($answer->body) : null;
                $error = $this->refusal($answer, $fields);
            } catch (AttemptTimeoutException | ConnectionFailedException $failure) {
                $error = $failure;
            }
            $endedAt = $setup->clock->monotonic();
            $wait = $error === null ? null : $this->waitSeconds($error, $attempt, $endsAt - $endedAt);
            $this->reportAttempt($answer, $attempt, $endedAt - $beganAt, $wait);
            if ($error === null) {
                return [$answer, $fields];
            }
            if ($wait === null) {
                throw $error;
            }
            ($setup->sleep)($wait);
        }
    }

    /** How long to wait before the next attempt; null if there is none. */
    private function waitSeconds(PosthouseException $error, int $attempt, float $left): ?float
    {
        $policy = $this->setup->retryPolicy;
        if (!$error->isRetryable() || $attempt >= $policy->attemptsMax) {
            return null;
        }
        $wait = $policy->waitSeconds($attempt, ($this->setup->random)(), $error->retryAfter);

        return $wait < $left ? $wait : null;
    }

    private function reportAttempt(?Answer $answer, int $attempt, float $duration, ?float $wait): void
    {
        if ($this->setup->debug !== null) {
            ($this->setup->debug)(new DebugEvent(
                $this->request->method,
                $this->request->url,
                $answer?->status,
                $attempt,
                $duration,
                $wait,
            ));
        }
    }

    /**
     * Null if the answer is the success that was asked for.
     *
     * @param array<array-key, mixed>|null $fields
     */
    private function refusal(Answer $answer, ?array $fields): ?ApiException
    {
        $known = $fields ?? [];
        $isWhole = Answers::text($known, 'id') !== null && Answers::text($known, 'status') !== null;
        if ($answer->status === $this->success && $isWhole) {
            return null;
        }
        $details = $answer->status >= 400 ? $known : [];

        return new ApiException(
            Answers::text($details, 'error') ?? $this->whatCame($answer),
            status: $answer->status,
            errorCode: Answers::text($details, 'code'),
            requestId: Answers::text($details, 'request_id') ?? Answers::text($answer->headers, 'x-request-id'),
            retryAfter: Backoff::retryAfterSeconds(
                $answer->headers['retry-after'] ?? null,
                $this->setup->clock->now(),
            ),
        );
    }

    private function whatCame(Answer $answer): string
    {
        return match (true) {
            strlen($answer->body) > Answer::BYTES_MAX
                => sprintf('the answer is longer than %d bytes', Answer::BYTES_MAX),
            $answer->status >= 300 && $answer->status < 400
                => 'the service answered with a redirect, which is not followed: check the base URL',
            $answer->status === $this->success
                => 'the answer is not the JSON that was expected: check the base URL',
            default => "the service answered with status {$answer->status}",
        };
    }
}
