package example.posthouse;

import java.time.Instant;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * A webhook event. The same id may arrive more than once.
 *
 * @param type {@code email.delivered}, {@code email.bounced}, {@code email.failed} or {@code webhook.test}
 */
public record Event(String id, String type, Instant createdAt, Data data) {
    private static final List<String> NAMED = List.of(
            "email_id", "recipient_id", "to", "from", "subject", "smtp_code", "smtp_response", "test");

    /**
     * Which recipient of which message an event is about. Absent values are null.
     *
     * @param extra the fields that this version has no name for: strings, numbers, booleans, null, lists and maps
     */
    public record Data(
            String emailId,
            String recipientId,
            String to,
            String from,
            String subject,
            Integer smtpCode,
            String smtpResponse,
            boolean test,
            Map<String, Object> extra) {}

    /** Null if that is no event. */
    static Event of(Fields given) {
        String id = given.text("id");
        String type = given.text("type");
        Instant createdAt = given.moment("created_at");
        Fields data = given.object("data");
        return id == null || type == null || createdAt == null || data == null
                ? null
                : new Event(id, type, createdAt, data(data));
    }

    private static Data data(Fields given) {
        Map<String, Object> extra = new LinkedHashMap<>(given.all());
        extra.keySet().removeAll(NAMED);
        return new Data(
                given.text("email_id"),
                given.text("recipient_id"),
                given.text("to"),
                given.text("from"),
                given.text("subject"),
                given.number("smtp_code"),
                given.text("smtp_response"),
                given.isTrue("test"),
                Collections.unmodifiableMap(extra));
    }
}
