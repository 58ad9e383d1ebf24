package example.posthouse;

import java.time.Instant;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * An email to send, made with {@link #builder}. Addresses are bare ({@code ada@example.com}) or with a name
 * ({@code Ada <ada@example.com>}).
 *
 * <p>One of text, html, template and attachments must be given, and a subject unless the template has one.
 */
public final class Email {
    private final Map<String, Object> fields;

    private Email(Map<String, Object> fields) {
        this.fields = fields;
    }

    public static Builder builder() {
        return new Builder();
    }

    /** The body of the request, without what is empty. */
    byte[] toJson() {
        try {
            return Json.write(fields);
        } catch (Json.MalformedException malformed) {
            throw new InvalidArgumentException("a template's variables are strings, numbers, booleans and null: "
                    + malformed.getMessage());
        }
    }

    @Override
    public String toString() {
        return "Email[from=" + fields.get("from") + ", to=" + fields.get("to") + "]";
    }

    /** Where there may be several of something, each call adds to what was given before. */
    public static final class Builder {
        private final Map<String, Object> texts = new LinkedHashMap<>();
        private final Map<String, List<String>> lists = new LinkedHashMap<>();
        private final Map<String, Object> variables = new LinkedHashMap<>();
        private final Map<String, String> headers = new LinkedHashMap<>();
        private final Map<String, String> metadata = new LinkedHashMap<>();
        private final List<Attachment> attachments = new ArrayList<>();

        private Builder() {}

        public Builder from(String address) {
            return set("from", address);
        }

        public Builder to(String... addresses) {
            return add("to", List.of(addresses));
        }

        public Builder to(Collection<String> addresses) {
            return add("to", addresses);
        }

        public Builder cc(String... addresses) {
            return add("cc", List.of(addresses));
        }

        public Builder cc(Collection<String> addresses) {
            return add("cc", addresses);
        }

        public Builder bcc(String... addresses) {
            return add("bcc", List.of(addresses));
        }

        public Builder bcc(Collection<String> addresses) {
            return add("bcc", addresses);
        }

        public Builder replyTo(String address) {
            return set("reply_to", address);
        }

        public Builder subject(String subject) {
            return set("subject", subject);
        }

        public Builder text(String text) {
            return set("text", text);
        }

        public Builder html(String html) {
            return set("html", html);
        }

        /** The alias of a template, in the place of text and html. */
        public Builder template(String alias) {
            return set("template", alias);
        }

        /** A variable of the template: a string, a number, a boolean or null. */
        public Builder variable(String name, Object value) {
            variables.put(name, value);
            return this;
        }

        public Builder variables(Map<String, ?> all) {
            variables.putAll(all);
            return this;
        }

        public Builder header(String name, String value) {
            headers.put(name, value);
            return this;
        }

        public Builder headers(Map<String, String> all) {
            headers.putAll(all);
            return this;
        }

        public Builder tags(String... tags) {
            return add("tags", List.of(tags));
        }

        public Builder tags(Collection<String> tags) {
            return add("tags", tags);
        }

        /** It is sent at this time, and not before. */
        public Builder sendAt(Instant time) {
            return set("send_at", time == null ? null : time.toString());
        }

        /** A pair for your own programs, which is never in the mail. */
        public Builder metadata(String name, String value) {
            metadata.put(name, value);
            return this;
        }

        public Builder metadata(Map<String, String> all) {
            metadata.putAll(all);
            return this;
        }

        /** With {@code "forget"}, no one can read the mail once it is accepted, and it is deleted after its result. */
        public Builder content(String value) {
            return set("content", value);
        }

        public Builder attach(Attachment... all) {
            attachments.addAll(List.of(all));
            return this;
        }

        public Email build() {
            Map<String, Object> fields = new LinkedHashMap<>(texts);
            fields.values().removeIf(text -> text == null || "".equals(text));
            lists.forEach((name, values) -> fields.put(name, List.copyOf(values)));
            fields.put("variables", Collections.unmodifiableMap(new LinkedHashMap<>(variables)));
            fields.put("headers", Map.copyOf(headers));
            fields.put("metadata", Map.copyOf(metadata));
            fields.put("attachments", attachments.stream().map(Attachment::toJson).toList());
            fields.values().removeIf(value -> value instanceof Collection<?> many && many.isEmpty()
                    || value instanceof Map<?, ?> named && named.isEmpty());
            return new Email(fields);
        }

        private Builder set(String name, String value) {
            texts.put(name, value);
            return this;
        }

        private Builder add(String name, Collection<String> values) {
            lists.computeIfAbsent(name, key -> new ArrayList<>()).addAll(values);
            return this;
        }
    }
}
