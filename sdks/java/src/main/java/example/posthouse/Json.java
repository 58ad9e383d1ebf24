package example.posthouse;

import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * JSON, which the standard library hasn't: objects are maps, arrays lists, numbers Long or Double, null is null. It is
 * read strictly, and written in one line.
 */
final class Json {
    private static final int DEPTH_MAX = 200;
    private static final int LONG_DIGITS_MAX = 18;

    private final String text;
    private int at;
    private int depth;

    private Json(String text) {
        this.text = text;
    }

    /** It can't be read, or can't be written. */
    static final class MalformedException extends Exception {
        private static final long serialVersionUID = 1;

        MalformedException(String message) {
            super(message);
        }
    }

    static Object read(byte[] content) throws MalformedException {
        String text;
        try {
            // Unlike a String's constructor, this refuses what isn't UTF-8.
            text = StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(content)).toString();
        } catch (CharacterCodingException notUtf8) {
            throw new MalformedException("it is not UTF-8");
        }
        Json reader = new Json(text);
        Object value = reader.value();
        reader.skipSpace();
        if (reader.at < text.length()) {
            throw reader.unexpected();
        }
        return value;
    }

    private Object value() throws MalformedException {
        skipSpace();
        switch (next()) {
            case '{':
                return object();
            case '[':
                return array();
            case '"':
                return string();
            case 't':
                return literal("true", Boolean.TRUE);
            case 'f':
                return literal("false", Boolean.FALSE);
            case 'n':
                return literal("null", null);
            default:
                return number();
        }
    }

    private Map<String, Object> object() throws MalformedException {
        descend();
        Map<String, Object> fields = new LinkedHashMap<>();
        at++;
        skipSpace();
        if (next() != '}') {
            do {
                skipSpace();
                if (next() != '"') {
                    throw unexpected();
                }
                String name = string();
                skipSpace();
                expect(':');
                fields.put(name, value());
                skipSpace();
            } while (another());
        }
        expect('}');
        depth--;
        return fields;
    }

    private List<Object> array() throws MalformedException {
        descend();
        List<Object> values = new ArrayList<>();
        at++;
        skipSpace();
        if (next() != ']') {
            do {
                values.add(value());
                skipSpace();
            } while (another());
        }
        expect(']');
        depth--;
        return values;
    }

    private String string() throws MalformedException {
        at++;
        StringBuilder read = new StringBuilder();
        while (true) {
            char one = next();
            at++;
            if (one == '"') {
                return read.toString();
            }
            if (one < ' ') {
                throw unexpected();
            }
            read.append(one == '\\' ? escaped() : one);
        }
    }

    private char escaped() throws MalformedException {
        char one = next();
        at++;
        int known = "\"\\/bfnrt".indexOf(one);
        if (known >= 0) {
            return "\"\\/\b\f\n\r\t".charAt(known);
        }
        if (one != 'u' || at + 4 > text.length()) {
            throw unexpected();
        }
        int code = 0;
        for (int end = at + 4; at < end; at++) {
            int digit = "0123456789abcdef".indexOf(Character.toLowerCase(text.charAt(at)));
            if (digit < 0) {
                throw unexpected();
            }
            code = code * 16 + digit;
        }
        return (char) code;
    }

    private Object number() throws MalformedException {
        int start = at;
        if (next() == '-') {
            at++;
        }
        int digits = at;
        skipDigits();
        if (at > digits + 1 && text.charAt(digits) == '0') {
            throw unexpected();
        }
        boolean isWhole = true;
        if (at < text.length() && text.charAt(at) == '.') {
            isWhole = false;
            at++;
            skipDigits();
        }
        if (at < text.length() && (text.charAt(at) == 'e' || text.charAt(at) == 'E')) {
            isWhole = false;
            at++;
            if (next() == '+' || next() == '-') {
                at++;
            }
            skipDigits();
        }
        String written = text.substring(start, at);
        if (isWhole && at - digits <= LONG_DIGITS_MAX) {
            return Long.valueOf(written);
        }
        return Double.valueOf(written);
    }

    private void skipDigits() throws MalformedException {
        int start = at;
        while (at < text.length() && '0' <= text.charAt(at) && text.charAt(at) <= '9') {
            at++;
        }
        if (at == start) {
            throw unexpected();
        }
    }

    private Object literal(String word, Object value) throws MalformedException {
        if (!text.startsWith(word, at)) {
            throw unexpected();
        }
        at += word.length();
        return value;
    }

    private void skipSpace() {
        while (at < text.length() && " \t\n\r".indexOf(text.charAt(at)) >= 0) {
            at++;
        }
    }

    private boolean another() throws MalformedException {
        boolean is = next() == ',';
        if (is) {
            at++;
        }
        return is;
    }

    private void expect(char one) throws MalformedException {
        if (next() != one) {
            throw unexpected();
        }
        at++;
    }

    private char next() throws MalformedException {
        if (at >= text.length()) {
            throw new MalformedException("it ends too early");
        }
        return text.charAt(at);
    }

    private void descend() throws MalformedException {
        if (++depth > DEPTH_MAX) {
            throw new MalformedException("it is nested too deeply");
        }
    }

    private MalformedException unexpected() {
        return new MalformedException("it is malformed at character " + at);
    }

    static byte[] write(Object value) throws MalformedException {
        StringBuilder written = new StringBuilder();
        write(value, written, 0);
        return written.toString().getBytes(StandardCharsets.UTF_8);
    }

    private static void write(Object value, StringBuilder into, int depth) throws MalformedException {
        if (depth > DEPTH_MAX) {
            throw new MalformedException("it is nested too deeply");
        }
        if (value == null || value instanceof Boolean) {
            into.append(value);
        } else if (value instanceof CharSequence text) {
            writeString(text, into);
        } else if (value instanceof Number number) {
            if (!Double.isFinite(number.doubleValue()) && (number instanceof Double || number instanceof Float)) {
                throw new MalformedException("JSON has no " + number);
            }
            into.append(number);
        } else if (value instanceof Map<?, ?> fields) {
            String before = "{";
            for (Map.Entry<?, ?> one : fields.entrySet()) {
                into.append(before);
                writeString(String.valueOf(one.getKey()), into);
                into.append(':');
                write(one.getValue(), into, depth + 1);
                before = ",";
            }
            into.append(fields.isEmpty() ? "{}" : "}");
        } else if (value instanceof Iterable<?> values) {
            String before = "[";
            for (Object one : values) {
                into.append(before);
                write(one, into, depth + 1);
                before = ",";
            }
            into.append(before.equals("[") ? "[]" : "]");
        } else {
            throw new MalformedException("JSON has no " + value.getClass().getName());
        }
    }

    private static void writeString(CharSequence text, StringBuilder into) {
        into.append('"');
        for (int index = 0; index < text.length(); index++) {
            char one = text.charAt(index);
            int known = "\"\\\b\f\n\r\t".indexOf(one);
            if (known >= 0) {
                into.append('\\').append("\"\\bfnrt".charAt(known));
            } else if (one < ' ') {
                into.append(String.format("\\u%04x", (int) one));
            } else {
                into.append(one);
            }
        }
        into.append('"');
    }
}
