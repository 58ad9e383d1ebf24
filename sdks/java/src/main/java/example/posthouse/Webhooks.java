package example.posthouse;

import example.posthouse.WebhookVerificationException.Reason;
import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.security.MessageDigest;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;

/** Verifies that a request is the service's own, and parses it. */
public final class Webhooks {
    /** The header that the signature is in. */
    public static final String SIGNATURE_HEADER = "Service-Signature";

    /** How long before and after the time it was signed a request is believed. */
    public static final Duration TOLERANCE = Duration.ofSeconds(300);

    private static final Pattern FIELD = Pattern.compile("([^=,\\s]+)=([^,\\s]*)");
    private static final Pattern TIME = Pattern.compile("[0-9]{1,12}");
    private static final Pattern SIGNATURE = Pattern.compile("[0-9a-f]{64}");

    private Webhooks() {}

    /**
     * The event, if the request is the service's own.
     *
     * @param body the request's as it came, before anything parsed it
     * @param header the value of {@link #SIGNATURE_HEADER}, null if there is none
     * @param secret the webhook's, with its {@code whsec_}
     * @throws WebhookVerificationException otherwise
     */
    public static Event verify(byte[] body, String header, String secret) {
        return verify(body, header, secret, TOLERANCE, Instant.now());
    }

    /** The same, with another tolerance, and at another time. */
    public static Event verify(byte[] body, String header, String secret, Duration tolerance, Instant now) {
        Checks.checked(secret, !secret.isEmpty(), "the webhook's secret is empty; anybody could sign with it");
        Checks.notNegative(tolerance, "the tolerance");
        Signed signed = Signed.parsed(header == null ? "" : header);
        byte[] expected = expected(body, signed.at, secret);
        boolean isGenuine = false;
        for (String one : signed.signatures) {
            isGenuine |= MessageDigest.isEqual(expected, one.getBytes(StandardCharsets.US_ASCII));
        }
        if (!isGenuine) {
            throw new WebhookVerificationException(
                    Reason.WRONG_SIGNATURE, "the signature is not that of this body and secret");
        }
        Instant at = Instant.ofEpochSecond(Long.parseLong(signed.at));
        if (Duration.between(now, at).abs().compareTo(tolerance) > 0) {
            throw new WebhookVerificationException(Reason.OUTSIDE_TOLERANCE,
                    "it was signed more than " + Checks.seconds(tolerance) + " before or after now");
        }
        Fields fields = Fields.read(body);
        Event event = fields == null ? null : Event.of(fields);
        if (event == null) {
            throw new WebhookVerificationException(Reason.MALFORMED_BODY, "the body is no event in JSON");
        }
        return event;
    }

    private static byte[] expected(byte[] body, String at, String secret) {
        try {
            Mac mac = Mac.getInstance("HmacSHA256");
            mac.init(new SecretKeySpec(secret.getBytes(StandardCharsets.UTF_8), "HmacSHA256"));
            mac.update((at + ".").getBytes(StandardCharsets.US_ASCII));
            return HexFormat.of().formatHex(mac.doFinal(body)).getBytes(StandardCharsets.US_ASCII);
        } catch (GeneralSecurityException missing) {
            throw new IllegalStateException("every Java has HmacSHA256", missing);
        }
    }

    private record Signed(String at, List<String> signatures) {
        static Signed parsed(String header) {
            String at = null;
            List<String> signatures = new ArrayList<>();
            // With the limit, what is empty at the end counts, too.
            for (String field : header.split(",", -1)) {
                Matcher pair = FIELD.matcher(field);
                if (!pair.matches()) {
                    throw malformed();
                }
                String value = pair.group(2);
                if (pair.group(1).equals("t")) {
                    if (at != null || !TIME.matcher(value).matches()) {
                        throw malformed();
                    }
                    at = value;
                } else if (pair.group(1).equals("v1")) {
                    if (!SIGNATURE.matcher(value).matches()) {
                        throw malformed();
                    }
                    signatures.add(value);
                }
            }
            if (at == null || signatures.isEmpty()) {
                throw malformed();
            }
            return new Signed(at, signatures);
        }

        private static WebhookVerificationException malformed() {
            return new WebhookVerificationException(
                    Reason.MALFORMED_HEADER, "the header " + SIGNATURE_HEADER + " is not of the form t=…,v1=…");
        }
    }
}
