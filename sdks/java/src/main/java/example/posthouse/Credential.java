package example.posthouse;

import java.nio.charset.StandardCharsets;
import java.util.Base64;

/** Who calls: an API key, a token from a login, or a user name and password. It is never printed. */
public final class Credential {
    private final String authorization;

    private Credential(String authorization) {
        this.authorization = authorization;
    }

    /** A key such as {@code ph_live_…}, with the read scope if it is to read. */
    public static Credential apiKey(String key) {
        return token(key);
    }

    /** A token from a login. */
    public static Credential token(String token) {
        return new Credential("Bearer " + Checks.token(token));
    }

    /** The user name and password of an SMTP credential. */
    public static Credential basic(String username, String password) {
        String pair = Checks.userName(username) + ":" + Checks.password(password);
        return new Credential("Basic " + Base64.getEncoder().encodeToString(pair.getBytes(StandardCharsets.UTF_8)));
    }

    String authorization() {
        return authorization;
    }

    @Override
    public String toString() {
        return "Credential()";
    }
}
