<?php

declare(strict_types=1);

namespace Posthouse;

/**
 * What can't be sent as it was given is refused here: above all whatever could end a header and begin another.
 *
 * @internal
 */
final class Checks
{
    private const KEY_CHARACTERS_MAX = 255;
    private const CONTROL = '/[\x00-\x1f\x7f]/';
    private const PRINTABLE = '/\A[ -~]*\z/';
    private const VISIBLE = '/\A[!-~]+\z/';
    private const BASE_URL = '~\Ahttps?://(?:\[[0-9a-f:.]+\]|[^][/:@?#\\\\]+)(?::(\d{1,5}))?(?:/[^?#]*)?\z~i';

    /** The base URL without slashes at its end. */
    public static function baseUrl(#[\SensitiveParameter] string $url): string
    {
        $isUrl = preg_match(self::VISIBLE, $url) === 1 && preg_match(self::BASE_URL, $url, $parts) === 1;
        $port = (int) ($parts[1] ?? 80);
        if (!$isUrl || $port < 1 || $port > 65_535) {
            // The text doesn't repeat the address, which may have a password in it.
            throw new InvalidArgumentException(
                'the base URL must be http://host or https://host, with a path or not, '
                . 'and without user name, password, query and fragment'
            );
        }

        return rtrim($url, '/');
    }

    public static function bearerToken(#[\SensitiveParameter] string $token): string
    {
        if (preg_match(self::VISIBLE, $token) !== 1) {
            throw new InvalidArgumentException(
                'an API key or token is printable ASCII without spaces, and not empty'
            );
        }

        return $token;
    }

    public static function userName(string $name): string
    {
        if ($name === '' || str_contains($name, ':') || self::hasControl($name)) {
            throw new InvalidArgumentException(
                'a user name is not empty and has neither colons nor control characters'
            );
        }

        return $name;
    }

    public static function password(#[\SensitiveParameter] string $word): string
    {
        if ($word === '' || self::hasControl($word)) {
            throw new InvalidArgumentException('a password is not empty and has no control characters');
        }

        return $word;
    }

    public static function userAgentSuffix(string $suffix): string
    {
        if (preg_match(self::PRINTABLE, $suffix) !== 1) {
            throw new InvalidArgumentException("the user agent's suffix may have printable ASCII characters alone");
        }

        return $suffix;
    }

    public static function idempotencyKey(string $key): string
    {
        $isLong = strlen($key) > self::KEY_CHARACTERS_MAX;
        if ($key === '' || $isLong || preg_match(self::PRINTABLE, $key) !== 1 || $key !== trim($key, ' ')) {
            throw new InvalidArgumentException(sprintf(
                'an idempotency key is 1 to %d printable ASCII characters, without spaces at its ends',
                self::KEY_CHARACTERS_MAX,
            ));
        }

        return $key;
    }

    /** The id as it stands in a path. */
    public static function messageId(string $id): string
    {
        if (in_array($id, ['', '.', '..'], true) || self::hasControl($id)) {
            throw new InvalidArgumentException("this is no message id; use that of a send's result");
        }

        return rawurlencode($id);
    }

    public static function filename(string $name): string
    {
        if ($name === '' || strpbrk($name, '/\\') !== false || self::hasControl($name)) {
            throw new InvalidArgumentException(
                'a file name is not empty, and has neither a path nor control characters'
            );
        }

        return $name;
    }

    public static function seconds(int|float $value, string $name, bool $mayBeZero = true): float
    {
        if (!is_finite((float) $value) || $value < 0 || ($value == 0 && !$mayBeZero)) {
            throw new InvalidArgumentException(
                sprintf('%s must be a number %s 0', $name, $mayBeZero ? 'of at least' : 'above')
            );
        }

        return (float) $value;
    }

    /** @param array<string, mixed> $fields */
    public static function json(array $fields): string
    {
        $flags = JSON_THROW_ON_ERROR | JSON_PRESERVE_ZERO_FRACTION;
        $flags |= JSON_UNESCAPED_UNICODE | JSON_UNESCAPED_SLASHES | JSON_UNESCAPED_LINE_TERMINATORS;
        try {
            return json_encode($fields, $flags);
        } catch (\JsonException $error) {
            // The text doesn't repeat the email.
            throw new InvalidArgumentException(
                "the email can't be written as JSON: its text must be UTF-8, its numbers finite",
                previous: $error,
            );
        }
    }

    private static function hasControl(#[\SensitiveParameter] string $text): bool
    {
        return preg_match(self::CONTROL, $text) === 1;
    }
}
