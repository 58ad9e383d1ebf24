<?php

declare(strict_types=1);

namespace Posthouse;

/**
 * How waits grow, and what the service asks to wait.
 *
 * @internal
 */
final class Backoff
{
    private const POLL_BASE_SECONDS = 0.5;
    private const POLL_FACTOR = 1.5;
    private const POLL_CAP_SECONDS = 5.0;
    private const MONTHS = ['Jan', 'Feb', 'Mar', 'Apr', 'May', 'Jun', 'Jul', 'Aug', 'Sep', 'Oct', 'Nov', 'Dec'];
    private const IMF_FIXDATE = '/\A(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun), (\d\d) ([A-Z][a-z]{2}) (\d{4}) '
        . '([01]\d|2[0-3]):([0-5]\d):([0-5]\d|60) GMT\z/';

    /** The wait after the poll of that number, from 1. */
    public static function pollSeconds(int $poll, float $random): float
    {
        return self::seconds(self::POLL_BASE_SECONDS, self::POLL_FACTOR, self::POLL_CAP_SECONDS, $poll, $random);
    }

    public static function seconds(
        int|float $base,
        int|float $factor,
        int|float $cap,
        int $number,
        float $random,
    ): float {
        // Nothing times an infinite power would be no number.
        $grown = $base == 0 ? 0.0 : $base * (float) $factor ** ($number - 1);

        return min((float) $cap, $grown) * (0.5 + $random / 2);
    }

    /** The header Retry-After, in seconds from `now`; null if it is absent or can't be read. */
    public static function retryAfterSeconds(?string $value, float $now): ?float
    {
        $text = trim($value ?? '', " \t");
        if (preg_match('/\A[0-9]+\z/', $text) === 1) {
            return (float) $text;
        }
        if (preg_match(self::IMF_FIXDATE, $text, $parts) !== 1) {
            return null;
        }
        [, $day, $name, $year, $hour, $minute, $second] = $parts;
        $month = array_search($name, self::MONTHS, true);
        if ($month === false || !checkdate($month + 1, (int) $day, (int) $year)) {
            return null;
        }
        $time = gmmktime((int) $hour, (int) $minute, (int) $second, $month + 1, (int) $day, (int) $year);

        return $time === false ? null : max(0.0, $time - $now);
    }
}
