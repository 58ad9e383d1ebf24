<?php

declare(strict_types=1);

use Posthouse\Answer;
use Posthouse\Attachment;
use Posthouse\AttemptTimeoutException;
use Posthouse\Client;
use Posthouse\ConnectionFailedException;
use Posthouse\Credential;
use Posthouse\CurlTransport;
use Posthouse\Email;
use Posthouse\InvalidArgumentException;
use Posthouse\PosthouseException;
use Posthouse\RetryPolicy;
use Posthouse\Webhook;

/** What the cases of sdks/conformance can't show of a library in every language: processes, proxies, TLS, printing. */
final class ClientTest
{
    use Assertions;

    private const KEY = 'ph_test_0123456789';
    private const REFUSED = 'a secret with spaces';
    private const URL = 'https://mail.acme.example';

    public function testAnEmailSaysItsTimeItsMetadataAndThatItIsForgotten(): void
    {
        $email = new Email(
            from: 'hello@acme.example',
            to: 'ada@example.net',
            text: 'Hi.',
            sendAt: new \DateTimeImmutable('2030-06-01T11:00:00+02:00'),
            metadata: ['order' => '1001'],
            content: 'forget',
        );
        $written = json_encode($email->toArray());
        $expected = '{"from":"hello@acme.example","to":"ada@example.net","text":"Hi.",'
            . '"send_at":"2030-06-01T09:00:00.000Z","metadata":{"order":"1001"},"content":"forget"}';
        $this->same($expected, $written);
    }

    public function testProcessesShareAClient(): void
    {
        if (!function_exists('pcntl_fork')) {
            throw new Skipped('there is no pcntl');
        }
        $service = new Service();
        $client = new Client(self::KEY, "http://127.0.0.1:{$service->port}");
        $client->send(self::email());
        $children = [];
        for ($number = 0; $number < 4; $number++) {
            $child = pcntl_fork();
            if ($child === 0) {
                try {
                    array_map(static fn () => $client->send(self::email()), range(1, 5));
                } finally {
                    // Without the endings of what the parent has opened.
                    posix_kill(getmypid(), SIGKILL);
                }
            }
            $children[] = $child;
        }
        foreach ($children as $child) {
            pcntl_waitpid($child, $status);
        }
        $client->send(self::email());
        $keys = array_column($service->stop(), 'key');
        $this->same(22, count($keys), 'requests');
        $this->same(22, count(array_unique($keys)), 'keys');
    }

    public function testATransportOfOnesOwnTakesThePlaceOfHttp(): void
    {
        $transport = self::accepting();
        $sent = (new Client(self::KEY, self::URL, transport: $transport))->send(self::email());
        $this->same(true, $sent->replayed);
        $this->same(self::URL . '/emails', $transport->requests[0]->url);
        $this->same('Bearer ' . self::KEY, $transport->requests[0]->headers()['Authorization']);
    }

    public function testItsExceptionsAreOurs(): void
    {
        $failures = [new AttemptTimeoutException('late'), new ConnectionFailedException('reset')];
        foreach ($failures as $failure) {
            $transport = new Recorded($failure);
            $client = new Client(self::KEY, self::URL, transport: $transport, sleep: static function (): void {
            });
            $this->same($failure, $this->throws(PosthouseException::class, static fn () => $client->get('em_1')));
            $this->same(4, count($transport->requests), 'attempts');
        }
    }

    public function testAnErrorOfTheProgramStaysWhatItIs(): void
    {
        $mistake = new LogicException('a mistake');
        $client = new Client(self::KEY, self::URL, transport: new Recorded($mistake));
        $this->same($mistake, $this->throws(LogicException::class, static fn () => $client->get('em_1')));
    }

    public function testNoSecretIsPrinted(): void
    {
        $transport = self::accepting();
        $credential = Credential::basic('acme', self::KEY);
        $client = new Client($credential, self::URL, transport: $transport, debug: static fn () => null);
        $client->send(self::email());
        $proxied = new CurlTransport(proxy: 'http://user:' . self::KEY . '@127.0.0.1:3128');
        foreach ([$client, $credential, Credential::bearer(self::KEY), $transport->requests[0], $proxied] as $one) {
            $shown = self::shown($one);
            foreach ([self::KEY, base64_encode('acme:' . self::KEY)] as $secret) {
                $this->lacks($secret, $shown, $one::class);
            }
            $this->throws(Exception::class, static fn () => serialize($one));
        }
    }

    public function testNoSecretIsPrintedWithAnException(): void
    {
        $calls = [
            static fn () => new Client(self::REFUSED, self::URL),
            static fn () => new Client(self::KEY, 'https://user:' . self::REFUSED . '@mail.acme.example'),
            static fn () => Credential::basic('acme', self::REFUSED . "\n"),
            static fn () => new CurlTransport(proxy: 'ftp://user:' . self::REFUSED . '@proxy'),
            static fn () => new CurlTransport(proxy: 'user:' . self::REFUSED . '@proxy'),
            static fn () => Webhook::verify('{}', 't=1,v1=' . str_repeat('0', 64), self::REFUSED),
            static fn () => (new Client(self::KEY, self::URL, transport: self::failing()))->get('em_1'),
        ];
        foreach ($calls as $number => $call) {
            $thrown = $this->throws(Exception::class, $call);
            // The arguments in a trace are the language's own, from 8.2 on without those that are marked.
            $trace = PHP_VERSION_ID < 80_200 ? '' : $thrown->getTraceAsString() . print_r($thrown->getTrace(), true);
            $shown = $thrown->getMessage() . $trace;
            $this->lacks(self::REFUSED, $shown, "exception {$number}");
            $this->lacks(self::KEY, $shown, "exception {$number}");
        }
    }

    public function testWhatCantBeSentIsRefused(): void
    {
        $client = new Client(self::KEY, self::URL, transport: self::accepting());
        foreach ([['text' => "\xff"], ['template' => 'a', 'variables' => ['total' => NAN]]] as $fields) {
            $email = new Email('a@acme.example', 'b@example.net', ...$fields);
            $this->throws(InvalidArgumentException::class, static fn () => $client->send($email));
        }
        $this->throws(InvalidArgumentException::class, static fn () => new Email('a@b.c', 'd@e.f', attachments: ['x']));
        $this->throws(InvalidArgumentException::class, static fn () => Attachment::fromFile(__DIR__ . '/nothing.txt'));
        $this->throws(InvalidArgumentException::class, static fn () => Attachment::fromFile(__DIR__));
        $this->throws(InvalidArgumentException::class, static fn () => new CurlTransport(caFile: __DIR__ . '/no.pem'));
    }

    public function testKeysAndListsKeepTheirShape(): void
    {
        $transport = self::accepting();
        $email = new Email(
            'a@acme.example',
            [3 => 'b@example.net', 5 => 'c@example.net'],
            template: 'a',
            variables: ['zero', 'one', 'price' => 2.0],
        );
        (new Client(self::KEY, self::URL, transport: $transport))->send($email);
        $this->same(
            '{"from":"a@acme.example","to":["b@example.net","c@example.net"],"template":"a",'
            . '"variables":{"0":"zero","1":"one","price":2.0}}',
            $transport->requests[0]->body,
        );
    }

    public function testAnAttemptThatNeverConnectsTimesOut(): void
    {
        $context = stream_context_create(['socket' => ['backlog' => 1]]);
        $full = stream_socket_server('tcp://127.0.0.1:0', context: $context);
        $address = stream_socket_get_name($full, false);
        // What is not accepted fills the queue of connections, and the next ones hang.
        $waiting = [];
        for ($number = 0; $number < 5; $number++) {
            $flags = STREAM_CLIENT_CONNECT | STREAM_CLIENT_ASYNC_CONNECT;
            $waiting[] = stream_socket_client("tcp://{$address}", $code, $text, 1, $flags);
        }
        $client = new Client(self::KEY, "http://{$address}", timeout: 0.3, retryPolicy: RetryPolicy::none());
        $this->throws(AttemptTimeoutException::class, static fn () => $client->get('em_1'));
    }

    public function testAHeadThatNeverEndsTimesOut(): void
    {
        $service = new Service('drip');
        $url = "http://127.0.0.1:{$service->port}";
        $client = new Client(self::KEY, $url, timeout: 0.3, retryPolicy: RetryPolicy::none());
        $this->throws(AttemptTimeoutException::class, static fn () => $client->get('em_1'));
        $service->stop();
    }

    public function testAProxyIsAskedForTheWholeAddress(): void
    {
        $proxy = new Service();
        $transport = new CurlTransport(proxy: "http://proxy%20user:pass+word%21%3A@127.0.0.1:{$proxy->port}");
        (new Client(self::KEY, 'http://mail.acme.invalid/api', transport: $transport))->send(self::email());
        $asked = $proxy->stop();
        $this->same(['POST http://mail.acme.invalid/api/emails HTTP/1.1'], array_column($asked, 'line'));
        $this->same(['Basic ' . base64_encode('proxy user:pass+word!:')], array_column($asked, 'proxy'));
    }

    public function testAProxyThatIsNoAddressIsRefused(): void
    {
        $addresses = ['proxy:3128', 'socks5://proxy:1080', 'https://proxy:3128', 'http://', 'http://proxy/path', ''];
        foreach ($addresses as $address) {
            $this->throws(InvalidArgumentException::class, static fn () => new CurlTransport(proxy: $address));
        }
    }

    public function testAProxyOfTheEnvironmentIsNotUsed(): void
    {
        $before = array_map(getenv(...), ['http_proxy' => 'http_proxy', 'no_proxy' => 'no_proxy']);
        putenv('http_proxy=http://127.0.0.1:9');
        putenv('no_proxy');
        $service = new Service();
        try {
            $client = new Client(self::KEY, "http://127.0.0.1:{$service->port}");
            $this->same('em_1', $client->send(self::email())->id);
        } finally {
            $service->stop();
            foreach ($before as $name => $value) {
                putenv($value === false ? $name : "{$name}={$value}");
            }
        }
    }

    public function testTlsDirectlyAndThroughAProxy(): void
    {
        $certificate = self::certificate();
        $service = new Service($certificate);
        $proxy = new Service();
        foreach ([null, "http://user:word@127.0.0.1:{$proxy->port}"] as $address) {
            $transport = new CurlTransport(proxy: $address, caFile: $certificate);
            $client = new Client(self::KEY, "https://localhost:{$service->port}", transport: $transport);
            $this->same('em_1', $client->send(self::email())->id);
        }
        $this->same(["CONNECT localhost:{$service->port} HTTP/1.1"], array_column($proxy->stop(), 'line'));
        $asked = $service->stop();
        $this->same(['POST /emails HTTP/1.1', 'POST /emails HTTP/1.1'], array_column($asked, 'line'));
        // The proxy's password is the proxy's alone.
        $this->same([null, null], array_column($asked, 'proxy'));
        unlink($certificate);
    }

    public function testAnUnknownCertificateIsNotTrusted(): void
    {
        $certificate = self::certificate();
        $service = new Service($certificate);
        $client = new Client(self::KEY, "https://localhost:{$service->port}", retryPolicy: RetryPolicy::none());
        $this->throws(ConnectionFailedException::class, static fn () => $client->send(self::email()));
        $this->same([], $service->stop());
        unlink($certificate);
    }

    private static function email(): Email
    {
        return new Email(from: 'hello@acme.example', to: 'ada@example.net', subject: 'Hello', text: 'Good morning.');
    }

    private static function accepting(): Recorded
    {
        return new Recorded(new Answer(202, ['idempotent-replayed' => 'true'], '{"id":"em_1","status":"queued"}'));
    }

    private static function failing(): Recorded
    {
        return new Recorded(new LogicException('a mistake'));
    }

    private static function shown(object $one): string
    {
        ob_start();
        var_dump($one, (array) $one);

        return ob_get_clean() . print_r($one, true) . var_export($one, true) . json_encode($one);
    }

    /** The path of a new certificate for localhost, with its key. */
    private static function certificate(): string
    {
        $file = tempnam(sys_get_temp_dir(), 'posthouse-');
        $command = 'openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=localhost'
            . ' -addext subjectAltName=DNS:localhost -days 2 -keyout - -out -';
        exec("{$command} 2>/dev/null", $lines, $status);
        if ($status !== 0) {
            throw new Skipped('openssl makes the certificate');
        }
        file_put_contents($file, implode("\n", $lines) . "\n");

        return $file;
    }
}
