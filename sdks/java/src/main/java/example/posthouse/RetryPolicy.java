package example.posthouse;

import java.time.DateTimeException;
import java.time.Duration;
import java.time.Instant;
import java.time.ZonedDateTime;
import java.time.format.DateTimeFormatter;
import java.util.regex.Pattern;

/**
 * How often a call is tried, and how it backs off. {@link #none} never tries again.
 *
 * <p>The wait after the n-th attempt is {@code base × factor^(n−1)}, no more than {@code cap}, of which a random share
 * of up to half is taken away; or what the service asks for with Retry-After, if that is longer. A call never takes
 * longer than {@code totalMax}, all its attempts and waits together: if the next wait doesn't fit into what is left,
 * the exception is thrown at once.
 *
 * @param attemptsMax counts the first attempt, too
 */
public record RetryPolicy(int attemptsMax, Duration base, double factor, Duration cap, Duration totalMax) {
    private static final Duration POLL_BASE = Duration.ofMillis(500);
    private static final double POLL_FACTOR = 1.5;
    private static final Duration POLL_CAP = Duration.ofSeconds(5);
    private static final int SECONDS_DIGITS_MAX = 18;
    private static final Pattern DIGITS = Pattern.compile("[0-9]+");
    private static final Pattern DATE =
            Pattern.compile("[A-Z][a-z]{2}, [0-9]{2} [A-Z][a-z]{2} [0-9]{4} [0-9]{2}:[0-9]{2}:[0-9]{2} GMT");

    public RetryPolicy {
        Checks.checked(attemptsMax, attemptsMax >= 1,
                "attemptsMax counts the first attempt, too, and must be at least 1");
        Checks.notNegative(base, "base");
        Checks.checked(factor, factor >= 0 && Double.isFinite(factor), "factor must be at least 0");
        Checks.notNegative(cap, "cap");
        Checks.notNegative(totalMax, "totalMax");
    }

    /** Four attempts within half a minute. */
    public static RetryPolicy defaults() {
        return new RetryPolicy(4, Duration.ofMillis(500), 2, Duration.ofSeconds(8), Duration.ofSeconds(30));
    }

    /** One attempt. */
    public static RetryPolicy none() {
        return new RetryPolicy(1, Duration.ZERO, 1, Duration.ZERO, Duration.ofSeconds(Long.MAX_VALUE));
    }

    public RetryPolicy withAttemptsMax(int other) {
        return new RetryPolicy(other, base, factor, cap, totalMax);
    }

    public RetryPolicy withBase(Duration other) {
        return new RetryPolicy(attemptsMax, other, factor, cap, totalMax);
    }

    public RetryPolicy withFactor(double other) {
        return new RetryPolicy(attemptsMax, base, other, cap, totalMax);
    }

    public RetryPolicy withCap(Duration other) {
        return new RetryPolicy(attemptsMax, base, factor, other, totalMax);
    }

    public RetryPolicy withTotalMax(Duration other) {
        return new RetryPolicy(attemptsMax, base, factor, cap, other);
    }

    /** The wait after the attempt of that number, from 1; {@code random} is in [0, 1). */
    Duration wait(int attempt, double random, Duration retryAfter) {
        Duration backedOff = jittered(base, factor, cap, attempt, random);
        return retryAfter != null && retryAfter.compareTo(backedOff) > 0 ? retryAfter : backedOff;
    }

    static Duration pollWait(int poll, double random) {
        return jittered(POLL_BASE, POLL_FACTOR, POLL_CAP, poll, random);
    }

    private static Duration jittered(Duration base, double factor, Duration cap, int number, double random) {
        double grown = Checks.nanos(base) * Math.pow(factor, number - 1);
        double most = Checks.nanos(cap);
        return Duration.ofNanos((long) ((grown < most ? grown : most) * (0.5 + random / 2)));
    }

    /** The header Retry-After, from {@code now}; null if it is absent or can't be read. */
    static Duration retryAfter(String value, Instant now) {
        String text = value == null ? "" : value.strip();
        if (DIGITS.matcher(text).matches()) {
            boolean isEndless = text.length() > SECONDS_DIGITS_MAX;
            return Duration.ofSeconds(isEndless ? Long.MAX_VALUE : Long.parseLong(text));
        }
        if (!DATE.matcher(text).matches()) {
            return null;
        }
        try {
            Instant at = ZonedDateTime.parse(text, DateTimeFormatter.RFC_1123_DATE_TIME).toInstant();
            return at.isBefore(now) ? Duration.ZERO : Duration.between(now, at);
        } catch (DateTimeException noDate) {
            return null;
        }
    }
}
