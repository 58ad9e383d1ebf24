<?php

declare(strict_types=1);

namespace Posthouse;

/** What a transport is asked to send. */
final class Request
{
    /** @param array<string, string> $headers all but the credential */
    public function __construct(
        public readonly string $method,
        public readonly string $url,
        private readonly array $headers,
        private readonly Secret $authorization,
        public readonly ?string $body = null,
    ) {
    }

    /**
     * With the credential among them, which is not to be printed.
     *
     * @return array<string, string>
     */
    public function headers(): array
    {
        return ['Authorization' => $this->authorization->reveal()] + $this->headers;
    }
}
