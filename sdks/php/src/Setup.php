<?php

declare(strict_types=1);

namespace Posthouse;

/**
 * What all calls of a client share.
 *
 * @internal
 */
final class Setup
{
    /**
     * @param (\Closure(DebugEvent): void)|null $debug
     * @param \Closure(float): void $sleep
     * @param \Closure(): float $random
     */
    public function __construct(
        public readonly string $baseUrl,
        public readonly Secret $authorization,
        public readonly string $userAgent,
        public readonly float $timeout,
        public readonly RetryPolicy $retryPolicy,
        public readonly Transport $transport,
        public readonly ?\Closure $debug,
        public readonly Clock $clock,
        public readonly \Closure $sleep,
        public readonly \Closure $random,
    ) {
    }
}
