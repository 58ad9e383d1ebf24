package example.posthouse;

import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.ThreadLocalRandom;
import java.util.function.Consumer;
import java.util.function.DoubleSupplier;

/** Sends email and reports its status. Safe to share between threads. Its printed form has no secrets. */
public final class PosthouseClient {
    /** The version of the library, as in its User-Agent. */
    public static final String VERSION = "1.0.0-rc.1";

    private static final Duration WAIT_TIMEOUT = Duration.ofSeconds(60);

    private final String baseUrl;
    private final TimeSource time;
    private final DoubleSupplier random;
    private final Exchanges exchanges;

    /** A client with the usual options; see {@link #builder} for others. */
    public PosthouseClient(Credential credential, String baseUrl) {
        this(builder(credential, baseUrl));
    }

    private PosthouseClient(Builder from) {
        this.baseUrl = Address.checked(from.baseUrl);
        this.time = from.time;
        this.random = from.random;
        this.exchanges = new Exchanges(
                from.credential.authorization(),
                ("posthouse-java/" + VERSION + " " + from.userAgentSuffix).stripTrailing(),
                from.timeout, from.retry, from.transport, from.debug, from.time, from.random);
    }

    /** Begins a client of the service at the base URL, such as {@code https://mail.example.com}. */
    public static Builder builder(Credential credential, String baseUrl) {
        return new Builder(credential, baseUrl);
    }

    /** The email is accepted and queued. A new idempotency key is made for the call, and used for all its attempts. */
    public Sent send(Email email) {
        return sendWith(email, UUID.randomUUID().toString());
    }

    /** The same with a key of one's own: with the same key and email it is never sent twice, for 24 hours. */
    public Sent send(Email email, String idempotencyKey) {
        return sendWith(email, Checks.idempotencyKey(idempotencyKey));
    }

    private Sent sendWith(Email email, String key) {
        Map<String, String> headers = new LinkedHashMap<>();
        headers.put("Content-Type", "application/json");
        headers.put("Idempotency-Key", key);
        Exchanges.Success came = exchanges.exchange("POST", baseUrl + "/emails", headers, email.toJson(), 202);
        return Sent.of(came.fields(), "true".equalsIgnoreCase(came.answer().headers().get("idempotent-replayed")));
    }

    /** The message as it is now. */
    public Message get(String id) {
        String url = baseUrl + "/emails/" + Checks.messageId(id);
        return Message.of(exchanges.exchange("GET", url, Map.of(), null, 200).fields());
    }

    /** The message when all its recipients have their result, for which 60 seconds are given. */
    public Message waitFor(String id) {
        return waitFor(id, WAIT_TIMEOUT);
    }

    /**
     * The message when all its recipients have their result.
     *
     * @throws WaitTimeoutException if that takes longer than {@code timeout}
     */
    public Message waitFor(String id, Duration timeout) {
        Checks.notNegative(timeout, "a wait's time-out");
        long began = time.nanoTime();
        for (int poll = 1; ; poll++) {
            Message message = get(id);
            if (message.isFinal()) {
                return message;
            }
            long left = Checks.nanos(timeout) - (time.nanoTime() - began);
            if (left < Exchanges.NANOS_MIN) {
                throw new WaitTimeoutException(
                        "the message " + message.id() + " was still queued after " + Checks.seconds(timeout), message);
            }
            Duration wait = RetryPolicy.pollWait(poll, random.getAsDouble());
            exchanges.sleep(Checks.nanos(wait) < left ? wait : Duration.ofNanos(left));
        }
    }

    @Override
    public String toString() {
        return "PosthouseClient[" + baseUrl + "]";
    }

    /** The options of a client. */
    public static final class Builder {
        private final Credential credential;
        private final String baseUrl;
        private Duration timeout = Duration.ofSeconds(10);
        private RetryPolicy retry = RetryPolicy.defaults();
        private String userAgentSuffix = "";
        private Transport transport = new HttpTransport();
        private Consumer<DebugEvent> debug = event -> {};
        private TimeSource time = TimeSource.system();
        private DoubleSupplier random = () -> ThreadLocalRandom.current().nextDouble();

        private Builder(Credential credential, String baseUrl) {
            this.credential = credential;
            this.baseUrl = baseUrl;
        }

        /** For an attempt as a whole: 10 seconds unless it is given. */
        public Builder timeout(Duration given) {
            timeout = Checks.positive(given, "the time-out");
            return this;
        }

        /** How often and how long a call is tried. */
        public Builder retry(RetryPolicy given) {
            retry = given;
            return this;
        }

        /** Identifies the client to the service, such as {@code shop/2.1}. */
        public Builder userAgentSuffix(String given) {
            userAgentSuffix = Checks.userAgentSuffix(given);
            return this;
        }

        /** Replaces the HTTP client; {@link HttpTransport#throughProxy} goes through a proxy. */
        public Builder transport(Transport given) {
            transport = given;
            return this;
        }

        /** Called for every attempt, without secrets; by several threads at once. */
        public Builder debug(Consumer<DebugEvent> given) {
            debug = given;
            return this;
        }

        /** Replaces time, for tests without waiting. */
        public Builder time(TimeSource given) {
            time = given;
            return this;
        }

        /** Replaces chance, for tests: numbers in [0, 1), to several threads at once. */
        public Builder random(DoubleSupplier given) {
            random = given;
            return this;
        }

        public PosthouseClient build() {
            return new PosthouseClient(this);
        }

        @Override
        public String toString() {
            return "PosthouseClient.Builder[]";
        }
    }
}
