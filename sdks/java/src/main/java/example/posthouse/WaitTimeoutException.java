package example.posthouse;

/** The message was still queued when the time was up. */
public final class WaitTimeoutException extends PosthouseException {
    private static final long serialVersionUID = 1;

    private final transient Message last;

    WaitTimeoutException(String message, Message last) {
        super(message, null);
        this.last = last;
    }

    /** How the message was last seen. */
    public Message last() {
        return last;
    }
}
