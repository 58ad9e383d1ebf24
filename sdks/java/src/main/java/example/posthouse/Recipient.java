package example.posthouse;

import java.time.Instant;

/**
 * An address of a message and its status. Absent values are null.
 *
 * @param status {@code queued}, {@code deferred}, {@code delivered}, {@code bounced} or {@code failed}
 */
public record Recipient(
        String id,
        String email,
        String status,
        String billingStatus,
        int attemptCount,
        Integer lastSmtpCode,
        String lastSmtpResponse,
        Instant deliveredAt,
        Instant bouncedAt) {

    static Recipient of(Fields given) {
        return new Recipient(
                given.text("id"),
                given.text("email"),
                given.text("status"),
                given.text("billing_status"),
                given.count("attempt_count"),
                given.number("last_smtp_code"),
                given.text("last_smtp_response"),
                given.moment("delivered_at"),
                given.moment("bounced_at"));
    }
}
