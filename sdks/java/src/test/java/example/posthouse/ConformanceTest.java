package example.posthouse;

import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.Collections;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

/** Every case of sdks/conformance: {@code python3 ../conformance/stub.py -- sh run_tests.sh}. */
public final class ConformanceTest {
    private static final String STUB = System.getenv("POSTHOUSE_STUB");
    private static final HttpClient HTTP = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
    private static final int BESIDE = 4;

    public void testEveryCase() throws Exception {
        if (STUB == null) {
            System.out.println("  left out: run it as `python3 ../conformance/stub.py -- sh run_tests.sh`");
            return;
        }
        List<String> problems = Collections.synchronizedList(new ArrayList<>());
        ExecutorService pool = Executors.newFixedThreadPool(BESIDE);
        List<Future<?>> all = new ArrayList<>();
        for (String name : ask("/_/cases", null).texts("cases")) {
            all.add(pool.submit(() -> {
                Fields given = ask("/_/runs", Map.of("case", name));
                Fields verdict = ask("/_/reports", report(given));
                if (!verdict.isTrue("passed")) {
                    problems.add(name + ": " + verdict.texts("problems"));
                }
                return null;
            }));
        }
        for (Future<?> one : all) {
            one.get();
        }
        pool.shutdown();
        Harness.check(problems.isEmpty(), String.join("\n", problems));
    }

    /** Time that stands still but for sleeps. */
    private static final class FakeTime implements TimeSource {
        private final List<Object> sleeps = new ArrayList<>();
        private Instant at;

        FakeTime(Instant at) {
            this.at = at;
        }

        @Override
        public Instant now() {
            return at;
        }

        @Override
        public long nanoTime() {
            return Duration.between(Instant.EPOCH, at).toNanos();
        }

        @Override
        public void sleep(Duration wait) {
            sleeps.add(number(wait));
            at = at.plus(wait);
        }
    }

    private static Map<String, Object> report(Fields given) throws Exception {
        Map<String, Object> report = new LinkedHashMap<>();
        report.put("run", given.number("run"));
        FakeTime time = new FakeTime(Instant.ofEpochSecond(given.number("now")));
        List<Object> debug = new ArrayList<>();
        report.put("sleeps", time.sleeps);
        report.put("debug", debug);
        try {
            report.put("result", result(given, time, debug, report));
        } catch (PosthouseException error) {
            report.put("error", describe(error));
        }
        return report;
    }

    private static Object result(Fields given, FakeTime time, List<Object> debug, Map<String, Object> report)
            throws IOException {
        Fields call = given.object("call");
        String kind = given.text("kind");
        if (kind.equals("webhook")) {
            return describe(verified(call, time.now()));
        }
        PosthouseClient client = client(given, time, debug);
        report.put("inspected", client + " " + String.format("%s", client));
        if (kind.equals("send")) {
            String key = (String) call.all().get("idempotency_key");
            Email email = email(call.object("email"));
            return describe(key == null ? client.send(email) : client.send(email, key));
        }
        String id = (String) call.all().get("id");
        if (kind.equals("get") || !call.all().containsKey("timeout")) {
            return describe(kind.equals("get") ? client.get(id) : client.waitFor(id));
        }
        return describe(client.waitFor(id, seconds(call, "timeout")));
    }

    private static PosthouseClient client(Fields given, FakeTime time, List<Object> debug) {
        Fields options = given.object("client");
        Map<String, Object> known = options.object("credential").all();
        Credential credential = known.containsKey("username")
                ? Credential.basic((String) known.get("username"), (String) known.get("password"))
                : known.containsKey("jwt")
                        ? Credential.token((String) known.get("jwt"))
                        : Credential.apiKey((String) known.get("api_key"));
        Iterator<?> drawn = ((List<?>) given.all().get("random")).iterator();
        PosthouseClient.Builder builder = PosthouseClient.builder(credential, (String) options.all().get("base_url"))
                .debug(event -> debug.add(describe(event)))
                .random(() -> drawn.hasNext() ? ((Number) drawn.next()).doubleValue() : 0);
        if (given.text("clock").equals("fake")) {
            builder.time(time);
        }
        if (options.all().containsKey("timeout")) {
            builder.timeout(seconds(options, "timeout"));
        }
        if (options.all().containsKey("user_agent_suffix")) {
            builder.userAgentSuffix((String) options.all().get("user_agent_suffix"));
        }
        if (options.all().containsKey("retry")) {
            Fields policy = options.object("retry");
            builder.retry(policy == null ? RetryPolicy.none() : policy(policy));
        }
        return builder.build();
    }

    private static RetryPolicy policy(Fields given) {
        RetryPolicy policy = RetryPolicy.defaults();
        for (String name : given.all().keySet()) {
            policy = switch (name) {
                case "attempts_max" -> policy.withAttemptsMax(given.number(name));
                case "base_seconds" -> policy.withBase(seconds(given, name));
                case "factor" -> policy.withFactor(((Number) given.all().get(name)).doubleValue());
                case "cap_seconds" -> policy.withCap(seconds(given, name));
                default -> policy.withTotalMax(seconds(given, name));
            };
        }
        return policy;
    }

    private static Email email(Fields given) throws IOException {
        Email.Builder email = Email.builder()
                .from((String) given.all().get("from"))
                .replyTo((String) given.all().get("reply_to"))
                .subject((String) given.all().get("subject"))
                .text((String) given.all().get("text"))
                .html((String) given.all().get("html"))
                .template((String) given.all().get("template"))
                .to(oneOrMany(given, "to"))
                .cc(oneOrMany(given, "cc"))
                .bcc(oneOrMany(given, "bcc"))
                .tags(oneOrMany(given, "tags"))
                .headers(given.textsByName("headers"));
        if (given.object("variables") != null) {
            email.variables(given.object("variables").all());
        }
        for (Fields one : given.objects("attachments")) {
            email.attach(attachment(one));
        }
        return email.build();
    }

    private static List<String> oneOrMany(Fields given, String name) {
        return given.text(name) == null ? given.texts(name) : List.of(given.text(name));
    }

    private static Attachment attachment(Fields given) throws IOException {
        String filename = (String) given.all().get("filename");
        Attachment attachment;
        if (given.text("file") != null) {
            attachment = Attachment.ofFile(Path.of(given.text("file")));
            attachment = filename == null ? attachment : attachment.withFilename(filename);
        } else if (given.all().containsKey("stream")) {
            attachment = Attachment.ofStream(new ByteArrayInputStream(bytes(given, "stream")), filename);
        } else {
            attachment = Attachment.of(filename, bytes(given, "bytes"));
        }
        return attachment.withContentType(given.text("content_type")).withContentId(given.text("content_id"));
    }

    private static Event verified(Fields call, Instant now) {
        byte[] body = bytes(call, "body_base64");
        String secret = (String) call.all().get("secret");
        Duration tolerance =
                call.all().containsKey("tolerance") ? seconds(call, "tolerance") : Webhooks.TOLERANCE;
        return Webhooks.verify(body, (String) call.all().get("header"), secret, tolerance, now);
    }

    private static Map<String, Object> describe(Sent sent) {
        return object(
                "id", sent.id(), "status", sent.status(), "source", sent.source(), "request_id", sent.requestId(),
                "from", sent.from(), "to", sent.to(), "cc", sent.cc(), "bcc", sent.bcc(), "reply_to", sent.replyTo(),
                "subject", sent.subject(), "billing_status", sent.billingStatus(),
                "recipient_count", sent.recipientCount(), "credits_reserved", sent.creditsReserved(),
                "headers", sent.headers(), "tags", sent.tags(), "replayed", sent.replayed(),
                "attachments", sent.attachments().stream().map(one -> object(
                        "filename", one.filename(), "content_type", one.contentType(), "size", one.size(),
                        "content_id", one.contentId())).toList());
    }

    private static Map<String, Object> describe(Message message) {
        return object(
                "id", message.id(), "status", message.status(), "source", message.source(), "from", message.from(),
                "subject", message.subject(), "billing_status", message.billingStatus(),
                "recipient_count", message.recipientCount(), "credits_reserved", message.creditsReserved(),
                "created_at", describe(message.createdAt()), "request_id", message.requestId(),
                "recipients", message.recipients().stream().map(one -> object(
                        "id", one.id(), "email", one.email(), "status", one.status(),
                        "billing_status", one.billingStatus(), "attempt_count", one.attemptCount(),
                        "last_smtp_code", one.lastSmtpCode(), "last_smtp_response", one.lastSmtpResponse(),
                        "delivered_at", describe(one.deliveredAt()), "bounced_at", describe(one.bouncedAt()))).toList());
    }

    private static Map<String, Object> describe(Event event) {
        Event.Data data = event.data();
        return object(
                "id", event.id(), "type", event.type(), "created_at", describe(event.createdAt()),
                "data", object(
                        "email_id", data.emailId(), "recipient_id", data.recipientId(), "to", data.to(),
                        "from", data.from(), "subject", data.subject(), "smtp_code", data.smtpCode(),
                        "smtp_response", data.smtpResponse(), "test", data.test(), "extra", data.extra()));
    }

    private static Map<String, Object> describe(DebugEvent event) {
        return object(
                "method", event.method(), "url", event.url(), "status", event.status(), "attempt", event.attempt(),
                "duration", number(event.duration()), "wait", number(event.nextWait()));
    }

    private static Map<String, Object> describe(PosthouseException error) {
        Map<String, Object> details = object(
                "type", "unknown", "message", error.toString(), "status", error.status(), "code", error.code(),
                "request_id", error.requestId(), "retry_after", number(error.retryAfter()),
                "is_retryable", error.isRetryable(), "is_insufficient_credits", error.isInsufficientCredits(),
                "is_idempotency_conflict", error.isIdempotencyConflict());
        if (error instanceof ApiException) {
            details.put("type", "api");
        } else if (error instanceof ConnectionFailedException) {
            details.put("type", "connection");
        } else if (error instanceof AttemptTimeoutException) {
            details.put("type", "timeout");
        } else if (error instanceof WaitTimeoutException late) {
            details.put("type", "wait_timeout");
            details.put("last", describe(late.last()));
        } else if (error instanceof WebhookVerificationException forged) {
            details.put("type", "webhook");
            details.put("reason", forged.reason().name().toLowerCase(Locale.ROOT));
        } else if (error instanceof InvalidArgumentException) {
            details.put("type", "invalid");
        }
        return details;
    }

    private static String describe(Instant at) {
        return at == null ? null : at.toString();
    }

    private static Double number(Duration given) {
        return given == null ? null : given.getSeconds() + given.getNano() / 1e9;
    }

    private static Map<String, Object> object(Object... pairs) {
        Map<String, Object> made = new LinkedHashMap<>();
        Iterator<Object> each = Arrays.asList(pairs).iterator();
        while (each.hasNext()) {
            made.put((String) each.next(), each.next());
        }
        return made;
    }

    private static Duration seconds(Fields given, String name) {
        return Duration.ofNanos(Math.round(((Number) given.all().get(name)).doubleValue() * 1e9));
    }

    private static byte[] bytes(Fields given, String name) {
        return Base64.getDecoder().decode((String) given.all().get(name));
    }

    private static Fields ask(String path, Object body) throws Exception {
        HttpRequest.Builder request = HttpRequest.newBuilder(URI.create(STUB + path));
        if (body != null) {
            request.POST(HttpRequest.BodyPublishers.ofByteArray(Json.write(body)));
        }
        return Fields.read(HTTP.send(request.build(), HttpResponse.BodyHandlers.ofByteArray()).body());
    }
}
