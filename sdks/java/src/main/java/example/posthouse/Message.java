package example.posthouse;

import java.time.Instant;
import java.util.List;

/**
 * A message and its status.
 *
 * @param status {@code queued}, {@code delivered}, {@code partial} or {@code failed}
 */
public record Message(
        String id,
        String status,
        String source,
        String from,
        String subject,
        String billingStatus,
        int recipientCount,
        int creditsReserved,
        Instant createdAt,
        List<Recipient> recipients,
        String requestId) {

    /** Whether all recipients have their result. */
    public boolean isFinal() {
        return !status.equals("queued");
    }

    static Message of(Fields given) {
        return new Message(
                given.text("id"),
                given.text("status"),
                given.text("source"),
                given.text("from"),
                given.text("subject"),
                given.text("billing_status"),
                given.count("recipient_count"),
                given.count("credits_reserved"),
                given.moment("created_at"),
                given.objects("recipients").stream().map(Recipient::of).toList(),
                given.text("request_id"));
    }
}
