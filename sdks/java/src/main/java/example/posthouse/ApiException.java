package example.posthouse;

import java.time.Duration;

/** The service answered, but not with what was asked for. */
public final class ApiException extends PosthouseException {
    private static final long serialVersionUID = 1;

    ApiException(String message, int status, String code, String requestId, Duration retryAfter) {
        super(message, null, status, code, requestId, retryAfter);
    }
}
