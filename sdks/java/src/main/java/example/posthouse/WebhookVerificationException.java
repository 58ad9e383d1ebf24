package example.posthouse;

/** A request that is not to be believed; answer it with 400 and do nothing else. */
public final class WebhookVerificationException extends PosthouseException {
    private static final long serialVersionUID = 1;

    /** Why a request is not to be believed. */
    public enum Reason { MALFORMED_HEADER, WRONG_SIGNATURE, OUTSIDE_TOLERANCE, MALFORMED_BODY }

    private final Reason reason;

    WebhookVerificationException(Reason reason, String message) {
        super("not a genuine webhook: " + message, null);
        this.reason = reason;
    }

    public Reason reason() {
        return reason;
    }
}
