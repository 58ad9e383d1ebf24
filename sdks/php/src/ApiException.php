<?php

declare(strict_types=1);

namespace Posthouse;

/** The service answered, but not with what was asked for. */
final class ApiException extends PosthouseException
{
}
