<?php

declare(strict_types=1);

namespace Posthouse;

/** The usual transport, with the curl extension and a connection for each exchange. */
final class CurlTransport implements Transport
{
    private readonly ?string $proxy;
    private readonly ?Secret $proxyUsername;
    private readonly ?Secret $proxyPassword;

    /**
     * @param string|null $proxy `http://host:port`, with a user name and password or without
     * @param string|null $caFile the certificates to trust; by default those that the system trusts
     */
    public function __construct(#[\SensitiveParameter] ?string $proxy = null, private readonly ?string $caFile = null)
    {
        $at = strrpos($proxy ?? '', '@');
        $slashes = strpos($proxy ?? '', '//');
        $isNamed = $at !== false && $slashes !== false;
        $pair = $isNamed ? explode(':', substr($proxy, $slashes + 2, $at - $slashes - 2), 2) : null;
        $this->proxy = $proxy === null ? null : self::proxyAddress(
            $isNamed ? substr($proxy, 0, $slashes + 2) . substr($proxy, $at + 1) : $proxy
        );
        $this->proxyUsername = $pair === null ? null : new Secret(rawurldecode($pair[0]));
        $this->proxyPassword = $pair === null ? null : new Secret(rawurldecode($pair[1] ?? ''));
        if ($caFile !== null && !is_file($caFile)) {
            throw new InvalidArgumentException("the file {$caFile} can't be read");
        }
    }

    public function exchange(Request $request, float $timeoutSeconds): Answer
    {
        $headers = [];
        $body = '';
        $handle = curl_init();
        curl_setopt_array($handle, $this->options($request, $timeoutSeconds));
        curl_setopt($handle, CURLOPT_HEADERFUNCTION, static function ($_, string $line) use (&$headers): int {
            if (str_starts_with($line, 'HTTP/')) {
                // Another answer, after one that only said to go on.
                $headers = [];
            } elseif (str_contains($line, ':')) {
                [$name, $value] = explode(':', $line, 2);
                $headers[strtolower(trim($name))] = trim($value);
            }

            return strlen($line);
        });
        curl_setopt($handle, CURLOPT_WRITEFUNCTION, static function ($_, string $piece) use (&$body): int {
            $body .= substr($piece, 0, Answer::BYTES_MAX + 1 - strlen($body));

            // Whatever isn't the piece's length ends the exchange.
            return strlen($body) > Answer::BYTES_MAX ? 0 : strlen($piece);
        });
        curl_exec($handle);
        $problem = curl_errno($handle);
        if ($problem === CURLE_OPERATION_TIMEDOUT) {
            throw new AttemptTimeoutException(sprintf('there was no whole answer within %g s', $timeoutSeconds));
        }
        if ($problem !== CURLE_OK && strlen($body) <= Answer::BYTES_MAX) {
            $said = curl_error($handle) ?: curl_strerror($problem);
            throw new ConnectionFailedException("the service could not be reached: {$said}");
        }

        return new Answer(curl_getinfo($handle, CURLINFO_RESPONSE_CODE), $headers, $body);
    }

    private static function proxyAddress(#[\SensitiveParameter] string $url): string
    {
        $address = Checks::baseUrl($url);
        if (preg_match('~\Ahttp://[^/]+\z~i', $address) !== 1) {
            // What is said to the proxy itself is not encrypted, so that another scheme would promise too much.
            throw new InvalidArgumentException('the proxy must be http://host:port');
        }

        // Without a port curl would take 1080.
        return preg_match('~:\d+\z~', $address) === 1 ? $address : "{$address}:80";
    }

    /** @return array<int, mixed> */
    private function options(Request $request, float $timeoutSeconds): array
    {
        $milliseconds = max(1, (int) ceil(min($timeoutSeconds, 86_400) * 1_000));
        // Without this curl would wait for a "100 Continue" before a larger body.
        $headers = ['Expect:'];
        foreach ($request->headers() as $name => $value) {
            $headers[] = "{$name}: {$value}";
        }
        $options = [
            CURLOPT_URL => $request->url,
            CURLOPT_CUSTOMREQUEST => $request->method,
            CURLOPT_HTTPHEADER => $headers,
            CURLOPT_FOLLOWLOCATION => false,
            CURLOPT_HTTP09_ALLOWED => false,
            CURLOPT_PATH_AS_IS => true,
            CURLOPT_PROTOCOLS => CURLPROTO_HTTP | CURLPROTO_HTTPS,
            CURLOPT_TIMEOUT_MS => $milliseconds,
            CURLOPT_CONNECTTIMEOUT_MS => $milliseconds,
            CURLOPT_NOSIGNAL => true,
            CURLOPT_FRESH_CONNECT => true,
            CURLOPT_FORBID_REUSE => true,
            CURLOPT_SUPPRESS_CONNECT_HEADERS => true,
            // An empty proxy is none; without a say it would be that of the environment.
            CURLOPT_PROXY => $this->proxy ?? '',
            CURLOPT_NOPROXY => '',
        ];
        if ($request->body !== null) {
            $options[CURLOPT_POSTFIELDS] = $request->body;
        }
        if ($this->proxyUsername !== null) {
            $options[CURLOPT_PROXYUSERNAME] = $this->proxyUsername->reveal();
            $options[CURLOPT_PROXYPASSWORD] = $this->proxyPassword?->reveal();
        }
        if ($this->caFile !== null) {
            $options[CURLOPT_CAINFO] = $this->caFile;
        }

        return $options;
    }
}
