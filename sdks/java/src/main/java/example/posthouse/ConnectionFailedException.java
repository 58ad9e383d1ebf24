package example.posthouse;

/** The service could not be reached, or the connection ended before its answer was whole. */
public final class ConnectionFailedException extends PosthouseException {
    private static final long serialVersionUID = 1;

    ConnectionFailedException(String message, Throwable cause) {
        super(message, cause);
    }

    @Override
    public boolean isRetryable() {
        return true;
    }
}
