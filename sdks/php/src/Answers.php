<?php

declare(strict_types=1);

namespace Posthouse;

/**
 * Reads the answers of the service. A later version may return more: a value of an unexpected type counts
 * as absent.
 *
 * @internal
 */
final class Answers
{
    private const NESTING_MAX = 512;
    private const RFC3339 = '/\A(\d{4})-(\d\d)-(\d\d)[Tt](?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d+)?'
        . '(?:[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)\z/';

    /**
     * The object that the text is the JSON of, or null.
     *
     * @return array<array-key, mixed>|null
     */
    public static function object(string $text): ?array
    {
        // As arrays {} and [] are the same, so the first character decides.
        $value = str_starts_with(ltrim($text, " \t\r\n"), '{') ? json_decode($text, true, self::NESTING_MAX) : null;

        return is_array($value) ? $value : null;
    }

    /** Whether a field of an object, which is the JSON of the text, is an object itself. */
    public static function hasObject(string $text, string $name): bool
    {
        $value = json_decode($text, false, self::NESTING_MAX);

        return $value instanceof \stdClass && ($value->{$name} ?? null) instanceof \stdClass;
    }

    /** @param array<array-key, mixed> $fields */
    public static function text(array $fields, string $name): ?string
    {
        $value = $fields[$name] ?? null;

        return is_string($value) && $value !== '' ? $value : null;
    }

    /**
     * @param array<array-key, mixed> $fields
     * @return list<string>
     */
    public static function texts(array $fields, string $name): array
    {
        return array_values(array_filter(self::elements($fields, $name), 'is_string'));
    }

    /** @param array<array-key, mixed> $fields */
    public static function number(array $fields, string $name): ?int
    {
        $value = $fields[$name] ?? null;

        return is_int($value) ? $value : null;
    }

    /**
     * @param array<array-key, mixed> $fields
     * @return list<array<array-key, mixed>>
     */
    public static function objects(array $fields, string $name): array
    {
        return array_values(array_filter(self::elements($fields, $name), 'is_array'));
    }

    /**
     * @param array<array-key, mixed> $fields
     * @return array<array-key, mixed>
     */
    public static function elements(array $fields, string $name): array
    {
        $value = $fields[$name] ?? null;

        return is_array($value) ? $value : [];
    }

    /** A time of RFC 3339, or null if it is absent or something else. */
    public static function moment(mixed $value): ?\DateTimeImmutable
    {
        if (!is_string($value) || preg_match(self::RFC3339, $value, $parts) !== 1) {
            return null;
        }
        if (!checkdate((int) $parts[2], (int) $parts[3], (int) $parts[1])) {
            return null;
        }

        try {
            return new \DateTimeImmutable($value);
        } catch (\Exception) {
            return null;
        }
    }
}
