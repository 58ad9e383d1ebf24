<?php

declare(strict_types=1);

// Accepts whatever comes, and as a proxy connects to whatever is asked for: `php serve.php [certificate with its key]`.
// Prints the port, then a line of JSON for each request. The certificate `drip` stands for an answer without an end.

$certificate = $argv[1] ?? null;
$isDripping = $certificate === 'drip';
$isSecure = $certificate !== null && !$isDripping;
$context = stream_context_create($isSecure ? ['ssl' => ['local_cert' => $certificate]] : []);
$listening = stream_socket_server(($isSecure ? 'tls' : 'tcp') . '://127.0.0.1:0', context: $context);
echo substr(strrchr(stream_socket_get_name($listening, false), ':'), 1), "\n";

/** @param resource $client */
function head($client): array
{
    $line = trim((string) fgets($client));
    $headers = [];
    while (($header = trim((string) fgets($client))) !== '') {
        [$name, $value] = explode(': ', $header, 2);
        $headers[strtolower($name)] = $value;
    }

    return [$line, $headers];
}

/** @param resource $client */
function tunnel($client, string $authority): void
{
    $onwards = stream_socket_client("tcp://{$authority}");
    fwrite($client, "HTTP/1.1 200 Connected\r\n\r\n");
    while (true) {
        $readable = [$client, $onwards];
        $others = null;
        stream_select($readable, $others, $others, 10);
        foreach ($readable as $one) {
            $piece = (string) fread($one, 65_536);
            if ($piece === '') {
                fclose($onwards);

                return;
            }
            fwrite($one === $client ? $onwards : $client, $piece);
        }
        if ($readable === []) {
            return;
        }
    }
}

while (true) {
    // A client that does not trust the certificate closes the connection.
    $client = @stream_socket_accept($listening, 60);
    if ($client === false) {
        continue;
    }
    [$line, $headers] = head($client);
    $details = ['key' => $headers['idempotency-key'] ?? null, 'proxy' => $headers['proxy-authorization'] ?? null];
    echo json_encode(['line' => $line] + $details, JSON_UNESCAPED_SLASHES), "\n";
    if ($isDripping) {
        fwrite($client, "HTTP/1.1 200 OK\r\n");
        while (@fwrite($client, "X-More: x\r\n") !== false) {
            usleep(20_000);
        }
    } elseif (str_starts_with($line, 'CONNECT ')) {
        tunnel($client, explode(' ', $line)[1]);
    } else {
        $length = (int) ($headers['content-length'] ?? 0);
        $length === 0 || stream_get_contents($client, $length);
        $body = '{"id":"em_1","status":"queued"}';
        fwrite($client, "HTTP/1.1 202 Accepted\r\nContent-Length: " . strlen($body) . "\r\n\r\n{$body}");
    }
    fclose($client);
}
