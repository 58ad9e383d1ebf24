package example.posthouse;

import java.util.Map;

/**
 * What a {@link Transport} is to ask for. Its printed form has neither headers nor body.
 *
 * @param body null if there is none; it must not be changed
 */
public record Request(String method, String url, Map<String, String> headers, byte[] body) {
    @Override
    public String toString() {
        return "Request[" + method + " " + url + "]";
    }
}
