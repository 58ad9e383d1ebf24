<?php

declare(strict_types=1);

namespace Posthouse;

/** Why a webhook is not to be believed. */
enum WebhookReason: string
{
    case MalformedHeader = 'malformed_header';
    case WrongSignature = 'wrong_signature';
    case OutsideTolerance = 'outside_tolerance';
    case MalformedBody = 'malformed_body';
}
