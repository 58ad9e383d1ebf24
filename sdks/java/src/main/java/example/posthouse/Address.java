package example.posthouse;

import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * The parts of an http or https URL. {@link java.net.URI} knows no host with an underscore, as containers' often have.
 *
 * @param host without the brackets of an IPv6 address
 * @param authority host and port as they stand in the URL
 */
record Address(boolean isSecure, String host, int port, String authority, String path) {
    private static final Pattern URL =
            Pattern.compile("(https?)://((\\[[0-9A-Fa-f:.]+]|[^/?#@:\\[\\]\\\\]+)(?::([0-9]{0,5}))?)(/[^?#]*)?");
    private static final int PORT_MAX = 65_535;

    /** The base URL without slashes at its end. The refusal doesn't repeat it, since it may have a password in it. */
    static String checked(String url) {
        Checks.checked(url, parsed(url) != null,
                "the base URL must be http://host or https://host, with a path or not, "
                        + "and without user name, password, query and fragment");
        return url.replaceFirst("/+$", "");
    }

    /** Null if that is none. */
    static Address parsed(String url) {
        Matcher parts = URL.matcher(url);
        if (!parts.matches() || !Checks.all(url, Checks::isVisible)) {
            return null;
        }
        boolean isSecure = parts.group(1).equals("https");
        String given = parts.group(4);
        int port = given == null || given.isEmpty() ? isSecure ? 443 : 80 : Integer.parseInt(given);
        if (port < 1 || port > PORT_MAX) {
            return null;
        }
        String host = parts.group(3).replace("[", "").replace("]", "");
        return new Address(isSecure, host, port, parts.group(2), parts.group(5) == null ? "/" : parts.group(5));
    }

    /** Host and port, both said. */
    String hostAndPort() {
        return (host.indexOf(':') < 0 ? host : "[" + host + "]") + ":" + port;
    }
}
