package example.posthouse;

/** The service did not answer in time. */
public final class AttemptTimeoutException extends PosthouseException {
    private static final long serialVersionUID = 1;

    AttemptTimeoutException(String message, Throwable cause) {
        super(message, cause);
    }

    @Override
    public boolean isRetryable() {
        return true;
    }
}
