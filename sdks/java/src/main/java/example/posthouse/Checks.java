package example.posthouse;

import java.math.BigDecimal;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.function.IntPredicate;

/** What can't be sent as it was given is refused here: above all whatever could end a header and begin another. */
final class Checks {
    private static final int KEY_CHARACTERS_MAX = 255;
    private static final String UNRESERVED = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~";

    private Checks() {}

    static String token(String token) {
        return checked(token, !token.isEmpty() && all(token, Checks::isVisible),
                "an API key or token is printable ASCII without spaces, and not empty");
    }

    static String userName(String name) {
        return checked(name, !name.isEmpty() && name.indexOf(':') < 0 && !hasControl(name),
                "a user name is not empty and has neither colons nor control characters");
    }

    static String password(String password) {
        return checked(password, !password.isEmpty() && !hasControl(password),
                "a password is not empty and has no control characters");
    }

    static String userAgentSuffix(String suffix) {
        return checked(suffix, all(suffix, Checks::isPrintable),
                "the user agent's suffix may have printable ASCII characters alone");
    }

    static String idempotencyKey(String key) {
        boolean isUsable = !key.isEmpty() && key.length() <= KEY_CHARACTERS_MAX && all(key, Checks::isPrintable)
                && key.equals(key.strip());
        return checked(key, isUsable, "an idempotency key is 1 to " + KEY_CHARACTERS_MAX
                + " printable ASCII characters, without spaces at its ends");
    }

    static String filename(String name) {
        boolean isUsable = !name.isEmpty() && name.indexOf('/') < 0 && name.indexOf('\\') < 0 && !hasControl(name);
        return checked(name, isUsable, "\"" + name + "\" is no file name: it must be one without a path");
    }

    /** The id of a message as it stands in a path. */
    static String messageId(String id) {
        checked(id, !id.isEmpty() && !id.equals(".") && !id.equals("..") && !hasControl(id),
                "this is no message id; use that of a send's result");
        StringBuilder escaped = new StringBuilder();
        for (byte one : id.getBytes(StandardCharsets.UTF_8)) {
            if (UNRESERVED.indexOf(one) >= 0) {
                escaped.append((char) one);
            } else {
                escaped.append(String.format("%%%02X", one));
            }
        }
        return escaped.toString();
    }

    static Duration notNegative(Duration given, String name) {
        return checked(given, !given.isNegative(), name + " must be at least 0");
    }

    static Duration positive(Duration given, String name) {
        return checked(given, !given.isNegative() && !given.isZero(), name + " must be above 0");
    }

    static <T> T checked(T given, boolean isUsable, String refusal) {
        if (!isUsable) {
            throw new InvalidArgumentException(refusal);
        }
        return given;
    }

    static boolean all(String text, IntPredicate is) {
        return text.chars().allMatch(is);
    }

    static boolean isVisible(int character) {
        return 0x20 < character && character < 0x7f;
    }

    static boolean isPrintable(int character) {
        return 0x20 <= character && character < 0x7f;
    }

    private static boolean hasControl(String text) {
        return text.chars().anyMatch(one -> one < 0x20 || one == 0x7f);
    }

    /** Nanoseconds, or as many as there can be. */
    static long nanos(Duration given) {
        try {
            return given.toNanos();
        } catch (ArithmeticException tooLong) {
            return Long.MAX_VALUE;
        }
    }

    /** For messages to people. */
    static String seconds(Duration given) {
        return new BigDecimal(given.getSeconds()).add(BigDecimal.valueOf(given.getNano(), 9))
                .stripTrailingZeros().toPlainString() + " s";
    }
}
