package example.posthouse;

import java.time.Duration;
import java.util.Objects;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/** The base of all exceptions of this library. Absent values are null. */
public class PosthouseException extends RuntimeException {
    private static final long serialVersionUID = 1;

    private final Integer status;
    private final String code;
    private final String requestId;
    private final Duration retryAfter;

    PosthouseException(String message, Throwable cause) {
        this(message, cause, null, null, null, null);
    }

    PosthouseException(
            String message, Throwable cause, Integer status, String code, String requestId, Duration retryAfter) {
        super(describe(message, status, code, requestId), cause);
        this.status = status;
        this.code = code;
        this.requestId = requestId;
        this.retryAfter = retryAfter;
    }

    private static String describe(String message, Integer status, String code, String requestId) {
        String details = Stream.of(status, code, requestId)
                .filter(Objects::nonNull).map(Object::toString).collect(Collectors.joining(", "));
        return details.isEmpty() ? message : message + " (" + details + ")";
    }

    /** The HTTP status that the service answered with. */
    public Integer status() {
        return status;
    }

    /** The service's word for what is wrong, such as {@code insufficient_credits}. */
    public String code() {
        return code;
    }

    /** The name of the request; quote it when you ask for help. */
    public String requestId() {
        return requestId;
    }

    /** How long the service asked to wait. */
    public Duration retryAfter() {
        return retryAfter;
    }

    /** Whether the same call may succeed later. The client has retried it already, as its policy says. */
    public boolean isRetryable() {
        return status != null && (status == 429 || status == 503) || "idempotency_in_progress".equals(code);
    }

    public boolean isInsufficientCredits() {
        return "insufficient_credits".equals(code);
    }

    /** Whether the idempotency key was used before, for another email. */
    public boolean isIdempotencyConflict() {
        return "idempotency_conflict".equals(code);
    }
}
