<?php

declare(strict_types=1);

namespace Posthouse;

/** An argument or option that can't be used; nothing was sent. */
final class InvalidArgumentException extends PosthouseException
{
}
