package example.posthouse;

import java.io.IOException;
import java.net.SocketTimeoutException;
import java.net.http.HttpTimeoutException;
import java.time.Duration;
import java.time.Instant;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.function.Consumer;
import java.util.function.DoubleSupplier;

/** Attempts, their results, and the waits between them. */
final class Exchanges {
    /** Less than this is no time at all. */
    static final long NANOS_MIN = 1_000_000;

    private final String authorization;
    private final String userAgent;
    private final Duration timeout;
    private final RetryPolicy retry;
    private final Transport transport;
    private final Consumer<DebugEvent> debug;
    private final TimeSource time;
    private final DoubleSupplier random;

    Exchanges(
            String authorization, String userAgent, Duration timeout, RetryPolicy retry, Transport transport,
            Consumer<DebugEvent> debug, TimeSource time, DoubleSupplier random) {
        this.authorization = authorization;
        this.userAgent = userAgent;
        this.timeout = timeout;
        this.retry = retry;
        this.transport = transport;
        this.debug = debug;
        this.time = time;
        this.random = random;
    }

    record Success(Answer answer, Fields fields) {}

    /** The result of an attempt: an answer with its fields if it is the success that was asked for, or a failure. */
    private record Outcome(Answer answer, Fields fields, PosthouseException failure) {}

    /** The first answer that is a success, after as many attempts as the policy has. */
    Success exchange(String method, String url, Map<String, String> more, byte[] body, int success) {
        Map<String, String> headers = new LinkedHashMap<>(more);
        headers.put("Authorization", authorization);
        headers.put("Accept", "application/json");
        headers.put("User-Agent", userAgent);
        Request request = new Request(method, url, Collections.unmodifiableMap(headers), body);
        long total = Checks.nanos(retry.totalMax());
        long start = time.nanoTime();
        for (int attempt = 1; ; attempt++) {
            long began = time.nanoTime();
            long allowed = Math.min(Checks.nanos(timeout), total - (began - start));
            Outcome outcome = attempt(request, Duration.ofNanos(Math.max(NANOS_MIN, allowed)), success);
            long ended = time.nanoTime();
            Duration wait = wait(outcome.failure, attempt, total - (ended - start));
            Integer status = outcome.answer == null ? null : outcome.answer.status();
            debug.accept(new DebugEvent(method, url, status, attempt, Duration.ofNanos(ended - began), wait));
            if (outcome.failure == null) {
                return new Success(outcome.answer, outcome.fields);
            }
            if (wait == null) {
                throw outcome.failure;
            }
            sleep(wait);
        }
    }

    void sleep(Duration wait) {
        try {
            time.sleep(wait);
        } catch (InterruptedException interrupted) {
            throw interrupted(interrupted);
        }
    }

    /** How long to wait before the next attempt; null if there is none. */
    private Duration wait(PosthouseException failure, int attempt, long left) {
        if (failure == null || !failure.isRetryable() || attempt >= retry.attemptsMax()) {
            return null;
        }
        Duration wait = retry.wait(attempt, random.getAsDouble(), failure.retryAfter());
        return Checks.nanos(wait) < left ? wait : null;
    }

    private Outcome attempt(Request request, Duration allowed, int success) {
        try {
            return judged(transport.exchange(request, allowed), success, time.now());
        } catch (SocketTimeoutException | HttpTimeoutException late) {
            String text = "there was no whole answer within " + Checks.seconds(allowed);
            return new Outcome(null, null, new AttemptTimeoutException(text, late));
        } catch (IOException broken) {
            String text = "the service could not be reached, or its answer was not whole: " + broken;
            return new Outcome(null, null, new ConnectionFailedException(text, broken));
        } catch (InterruptedException interrupted) {
            return new Outcome(null, null, interrupted(interrupted));
        }
    }

    private static CallInterruptedException interrupted(InterruptedException cause) {
        Thread.currentThread().interrupt();
        return new CallInterruptedException(cause);
    }

    private static Outcome judged(Answer answer, int success, Instant now) {
        boolean isTooLong = answer.body().length > Answer.BODY_BYTES_MAX;
        Fields fields = isTooLong ? null : Fields.read(answer.body());
        boolean isWhole = fields != null && fields.text("id") != null && fields.text("status") != null;
        if (answer.status() == success && isWhole) {
            return new Outcome(answer, fields, null);
        }
        Fields details = fields != null && answer.status() >= 400 ? fields : Fields.NONE;
        String message = details.text("error");
        String requestId = details.text("request_id");
        return new Outcome(answer, null, new ApiException(
                message == null ? whatCame(answer, success) : message,
                answer.status(),
                details.text("code"),
                requestId == null ? answer.headers().get("x-request-id") : requestId,
                RetryPolicy.retryAfter(answer.headers().get("retry-after"), now)));
    }

    private static String whatCame(Answer answer, int success) {
        if (answer.body().length > Answer.BODY_BYTES_MAX) {
            return "the answer is longer than " + Answer.BODY_BYTES_MAX + " bytes";
        }
        if (answer.status() / 100 == 3) {
            return "the service answered with a redirect, which is not followed: check the base URL";
        }
        if (answer.status() == success) {
            return "the answer is not the JSON that was expected: check the base URL";
        }
        return "the service answered with status " + answer.status();
    }
}
