<?php

declare(strict_types=1);

/** A server in a process of its own; serve.php is what it does. */
final class Service
{
    public readonly int $port;

    /** @var resource */
    private $process;

    /** @var resource */
    private $output;

    public function __construct(string ...$arguments)
    {
        $streams = [0 => ['file', '/dev/null', 'r'], 1 => ['pipe', 'w'], 2 => ['file', '/dev/null', 'w']];
        $this->process = proc_open([PHP_BINARY, __DIR__ . '/serve.php', ...$arguments], $streams, $pipes);
        $this->output = $pipes[1];
        $this->port = (int) fgets($this->output);
    }

    /**
     * Ends it, and returns the requests that it got.
     *
     * @return list<array{line: string, key: string|null, proxy: string|null}>
     */
    public function stop(): array
    {
        proc_terminate($this->process, 9);
        $lines = explode("\n", trim((string) stream_get_contents($this->output)));
        proc_close($this->process);

        return array_map(static fn (string $line): array => json_decode($line, true), array_filter($lines));
    }
}
