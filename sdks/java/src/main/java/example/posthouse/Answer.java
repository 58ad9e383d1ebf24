package example.posthouse;

import java.util.Map;

/**
 * What the service answered.
 *
 * @param headers with their names in lower case
 * @param body may end after {@link #BODY_BYTES_MAX} + 1 bytes
 */
public record Answer(int status, Map<String, String> headers, byte[] body) {
    /** An answer that is longer is not read to its end: no real one comes near. */
    public static final int BODY_BYTES_MAX = 1 << 20;

    @Override
    public String toString() {
        return "Answer[" + status + "]";
    }
}
