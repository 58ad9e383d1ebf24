package example.posthouse;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Locale;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** The answer to one HTTP/1.1 request, whose connection ends with it. */
final class AnswerReader {
    private static final int HEAD_BYTES_MAX = 1 << 16;
    private static final int CONTINUES_MAX = 10;
    private static final Pattern STATUS = Pattern.compile("HTTP/1\\.[01] ([1-9][0-9]{2})(?: .*)?");
    private static final Pattern LENGTH = Pattern.compile("[0-9]{1,15}");
    private static final Pattern CHUNK_LENGTH = Pattern.compile("([0-9A-Fa-f]{1,8})[ \\t]*(?:;.*)?");

    private final InputStream input;
    private final ByteArrayOutputStream body = new ByteArrayOutputStream();
    private int headBytes;

    AnswerReader(InputStream input) {
        this.input = input;
    }

    record Head(int status, Map<String, String> headers) {}

    Answer answer() throws IOException {
        Head head = head();
        // 100 Continue and its like come before the answer.
        for (int number = 0; head.status < 200; number++) {
            if (number == CONTINUES_MAX) {
                throw new IOException("the answer never comes");
            }
            head = head();
        }
        readBody(head);
        return new Answer(head.status, head.headers, body.toByteArray());
    }

    Head head() throws IOException {
        Matcher status = STATUS.matcher(line());
        if (!status.matches()) {
            throw new IOException("the answer is no HTTP");
        }
        return new Head(Integer.parseInt(status.group(1)), headers());
    }

    private Map<String, String> headers() throws IOException {
        Map<String, String> headers = new LinkedHashMap<>();
        for (String line = line(); !line.isEmpty(); line = line()) {
            int colon = line.indexOf(':');
            if (colon < 1) {
                throw new IOException("the answer has a header that is none");
            }
            headers.putIfAbsent(line.substring(0, colon).toLowerCase(Locale.ROOT), line.substring(colon + 1).strip());
        }
        return headers;
    }

    private void readBody(Head head) throws IOException {
        if (head.status == 204 || head.status == 304) {
            return;
        }
        String coding = head.headers.get("transfer-encoding");
        String length = head.headers.get("content-length");
        if (coding != null) {
            if (!coding.equalsIgnoreCase("chunked")) {
                throw new IOException("the answer is in a coding that was not asked for");
            }
            readChunks();
        } else if (length != null) {
            if (!LENGTH.matcher(length).matches()) {
                throw new IOException("the answer has a length that is none");
            }
            take(Long.parseLong(length));
        } else {
            body.write(input.readNBytes(left()));
        }
    }

    private void readChunks() throws IOException {
        while (left() > 0) {
            Matcher length = CHUNK_LENGTH.matcher(line());
            if (!length.matches()) {
                throw new IOException("the answer has a chunk that is none");
            }
            long bytes = Long.parseLong(length.group(1), 16);
            if (bytes == 0) {
                headers();
                return;
            }
            take(bytes);
            if (left() > 0 && !line().isEmpty()) {
                throw new IOException("the answer has a chunk that is longer than it says");
            }
        }
    }

    private void take(long bytes) throws IOException {
        int wanted = (int) Math.min(bytes, left());
        byte[] piece = input.readNBytes(wanted);
        if (piece.length < wanted) {
            throw new IOException("the connection ended in the middle of the answer");
        }
        body.write(piece);
    }

    /** How much of the body is still wanted: one byte more than there may be, to know that it is too long. */
    private int left() {
        return Answer.BODY_BYTES_MAX + 1 - body.size();
    }

    private String line() throws IOException {
        ByteArrayOutputStream line = new ByteArrayOutputStream();
        for (int one = input.read(); one != '\n'; one = input.read()) {
            if (one < 0) {
                throw new IOException("the connection ended before the answer was whole");
            }
            line.write(one);
            // Chunks have lines, too, but no more than bytes of a body.
            if (++headBytes > HEAD_BYTES_MAX + body.size() * 16L) {
                throw new IOException("the answer's head is too long");
            }
        }
        String text = line.toString(StandardCharsets.ISO_8859_1);
        return text.endsWith("\r") ? text.substring(0, text.length() - 1) : text;
    }
}
