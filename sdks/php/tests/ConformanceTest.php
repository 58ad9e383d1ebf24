<?php

declare(strict_types=1);

use Posthouse\ApiException;
use Posthouse\Attachment;
use Posthouse\AttemptTimeoutException;
use Posthouse\Client;
use Posthouse\ConnectionFailedException;
use Posthouse\Credential;
use Posthouse\DebugEvent;
use Posthouse\Email;
use Posthouse\InvalidArgumentException;
use Posthouse\PosthouseException;
use Posthouse\RetryPolicy;
use Posthouse\WaitTimeoutException;
use Posthouse\Webhook;
use Posthouse\WebhookVerificationException;

/** Every case of sdks/conformance: `python3 ../conformance/stub.py -- sh run_tests.sh`. */
final class ConformanceTest
{
    use Assertions;

    private const TYPES = [
        ApiException::class => 'api',
        ConnectionFailedException::class => 'connection',
        AttemptTimeoutException::class => 'timeout',
        WaitTimeoutException::class => 'wait_timeout',
        WebhookVerificationException::class => 'webhook',
        InvalidArgumentException::class => 'invalid',
    ];

    public function testEveryCase(): void
    {
        if (getenv('POSTHOUSE_STUB') === false) {
            throw new Skipped('run it as `python3 ../conformance/stub.py -- sh run_tests.sh`');
        }
        $problems = [];
        foreach (self::ask('/_/cases')['cases'] as $name) {
            $case = self::ask('/_/runs', ['case' => $name]);
            $verdict = self::ask('/_/reports', ['run' => $case['run']] + self::report($case));
            if (!$verdict['passed']) {
                $problems[] = "{$name}: " . implode('; ', $verdict['problems']);
            }
        }
        if ($problems !== []) {
            $this->fail(implode("\n", $problems));
        }
    }

    private static function report(array $case): array
    {
        $time = new FakeTime($case['now']);
        $report = ['result' => null, 'error' => null, 'debug' => [], 'inspected' => null];
        try {
            $result = $case['kind'] === 'webhook' ? self::verified($case) : self::called($case, $time, $report);
            $report['result'] = self::neutral($result);
        } catch (PosthouseException $error) {
            $report['error'] = self::describe($error);
        }

        return $report + ['sleeps' => $time->sleeps];
    }

    private static function called(array $case, FakeTime $time, array &$report): object
    {
        $client = new Client(...self::options($case, $time, $report));
        ob_start();
        var_dump($client, (array) $client);
        $report['inspected'] = ob_get_clean() . print_r($client, true) . var_export($client, true);
        $call = $case['call'];

        return match ($case['kind']) {
            'send' => $client->send(self::email($call['email']), ...self::some($call, 'idempotency_key')),
            'get' => $client->get($call['id']),
            'wait' => $client->wait($call['id'], ...self::some($call, 'timeout')),
        };
    }

    private static function options(array $case, FakeTime $time, array &$report): array
    {
        $client = $case['client'];
        $random = $case['random'];
        $options = [
            'credential' => self::credential($client['credential']),
            'baseUrl' => $client['base_url'],
            'debug' => static function (DebugEvent $event) use (&$report): void {
                $report['debug'][] = get_object_vars($event);
            },
            'random' => static function () use (&$random): float {
                return (float) array_shift($random);
            },
        ];
        if ($case['clock'] === 'fake') {
            $options += ['clock' => $time, 'sleep' => $time->sleep(...)];
        }
        if (isset($client['retry'])) {
            $options['retryPolicy'] = $client['retry'] === 'none'
                ? RetryPolicy::none()
                : new RetryPolicy(...self::some($client['retry'], ...array_keys($client['retry'])));
        }

        return $options + self::some($client, 'timeout', 'user_agent_suffix');
    }

    private static function credential(array $known): string|Credential
    {
        return match (true) {
            isset($known['api_key']) => $known['api_key'],
            isset($known['jwt']) => Credential::bearer($known['jwt']),
            default => Credential::basic($known['username'], $known['password']),
        };
    }

    private static function email(array $fields): Email
    {
        if (isset($fields['attachments'])) {
            $fields['attachments'] = array_map(self::attachment(...), $fields['attachments']);
        }

        return new Email(...self::some($fields, ...array_keys($fields)));
    }

    private static function attachment(array $fields): Attachment
    {
        $named = self::some($fields, 'filename', 'content_type', 'content_id');
        if (isset($fields['file'])) {
            return Attachment::fromFile($fields['file'], ...$named);
        }
        if (isset($fields['stream'])) {
            return Attachment::fromStream(self::stream(base64_decode($fields['stream'])), ...$named);
        }

        return new Attachment(...$named, content: base64_decode($fields['bytes']));
    }

    /**
     * A stream that can be read once.
     *
     * @return resource
     */
    private static function stream(string $content)
    {
        [$near, $far] = stream_socket_pair(STREAM_PF_UNIX, STREAM_SOCK_STREAM, 0);
        fwrite($far, $content);
        fclose($far);

        return $near;
    }

    private static function verified(array $case): object
    {
        $call = $case['call'];
        $body = base64_decode($call['body_base64']);

        return Webhook::verify(
            $body,
            $call['header'],
            $call['secret'],
            ...self::some($call, 'tolerance'),
            now: $case['now'],
        );
    }

    /** A model under the names of the HTTP interface. */
    private static function neutral(mixed $value): mixed
    {
        if ($value instanceof DateTimeImmutable) {
            return $value->setTimezone(new DateTimeZone('UTC'))->format('Y-m-d\TH:i:s.up');
        }
        if (is_object($value)) {
            $fields = get_object_vars($value);
            $names = array_map(
                static fn (string $name): string => strtolower(preg_replace('/[A-Z]/', '_$0', $name)),
                array_keys($fields),
            );

            return array_combine($names, array_map(self::neutral(...), $fields));
        }

        return is_array($value) ? array_map(self::neutral(...), $value) : $value;
    }

    private static function describe(PosthouseException $error): array
    {
        return [
            'type' => self::TYPES[$error::class],
            'message' => $error->getMessage(),
            'status' => $error->status,
            'code' => $error->errorCode,
            'request_id' => $error->requestId,
            'retry_after' => $error->retryAfter === INF ? null : $error->retryAfter,
            'is_retryable' => $error->isRetryable(),
            'is_insufficient_credits' => $error->isInsufficientCredits(),
            'is_idempotency_conflict' => $error->isIdempotencyConflict(),
            'last' => $error instanceof WaitTimeoutException ? self::neutral($error->last) : null,
            'reason' => $error instanceof WebhookVerificationException ? $error->reason->value : null,
        ];
    }

    /** Those of the fields that are there, under PHP's names. */
    private static function some(array $fields, string ...$names): array
    {
        $some = [];
        foreach ($names as $name) {
            if (array_key_exists($name, $fields)) {
                $some[lcfirst(str_replace('_', '', ucwords($name, '_')))] = $fields[$name];
            }
        }

        return $some;
    }

    private static function ask(string $path, ?array $body = null): array
    {
        $http = ['ignore_errors' => true, 'timeout' => 30];
        if ($body !== null) {
            $content = json_encode($body, JSON_THROW_ON_ERROR);
            $http += ['method' => 'POST', 'header' => 'Content-Type: application/json', 'content' => $content];
        }
        $answer = file_get_contents(getenv('POSTHOUSE_STUB') . $path, false, stream_context_create(['http' => $http]));

        return json_decode($answer, true, flags: JSON_THROW_ON_ERROR);
    }
}
