package example.posthouse;

import java.util.List;
import java.util.Map;

/**
 * An accepted email: queued, not yet delivered.
 *
 * @param replayed whether the idempotency key was used before, and this is the email of then
 */
public record Sent(
        String id,
        String status,
        String source,
        String requestId,
        String from,
        List<String> to,
        List<String> cc,
        List<String> bcc,
        String replyTo,
        String subject,
        String billingStatus,
        int recipientCount,
        int creditsReserved,
        Map<String, String> headers,
        List<String> tags,
        List<SentAttachment> attachments,
        boolean replayed) {

    static Sent of(Fields given, boolean replayed) {
        return new Sent(
                given.text("id"),
                given.text("status"),
                given.text("source"),
                given.text("request_id"),
                given.text("from"),
                given.texts("to"),
                given.texts("cc"),
                given.texts("bcc"),
                given.text("reply_to"),
                given.text("subject"),
                given.text("billing_status"),
                given.count("recipient_count"),
                given.count("credits_reserved"),
                given.textsByName("headers"),
                given.texts("tags"),
                given.objects("attachments").stream()
                        .map(one -> new SentAttachment(
                                one.text("filename"), one.text("content_type"), one.count("size"),
                                one.text("content_id")))
                        .toList(),
                replayed);
    }
}
