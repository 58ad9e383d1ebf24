<?php

declare(strict_types=1);

namespace Posthouse;

/** A request that is not to be believed; answer it with 400 and do nothing else. */
final class WebhookVerificationException extends PosthouseException
{
    public function __construct(string $description, public readonly WebhookReason $reason)
    {
        parent::__construct('not a genuine webhook: ' . $description);
    }
}
