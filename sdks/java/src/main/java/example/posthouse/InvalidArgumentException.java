package example.posthouse;

/** An argument or option that can't be used; nothing was sent. */
public final class InvalidArgumentException extends PosthouseException {
    private static final long serialVersionUID = 1;

    InvalidArgumentException(String message) {
        super(message, null);
    }
}
