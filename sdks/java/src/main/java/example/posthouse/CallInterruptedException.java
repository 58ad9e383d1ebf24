package example.posthouse;

/**
 * The thread was interrupted; it still is, when this is thrown. A send may or may not have been accepted: send it again
 * with the same idempotency key to know.
 */
public final class CallInterruptedException extends PosthouseException {
    private static final long serialVersionUID = 1;

    CallInterruptedException(InterruptedException cause) {
        super("the thread was interrupted", cause);
    }
}
