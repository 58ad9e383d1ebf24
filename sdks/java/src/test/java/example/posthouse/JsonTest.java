package example.posthouse;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** The library's own JSON. */
public final class JsonTest {
    public void testWhatIsWrittenIsRead() throws Exception {
        Map<String, Object> value = new LinkedHashMap<>();
        value.put("text", "\"quoted\" \\ / \u0001\u001f\u007f\u2028 Grüße 你好 💌");
        value.put("numbers", Arrays.asList(0L, -7L, 123456789012345678L, 12.5, -1e-7, 1e300));
        value.put("others", Arrays.asList(true, false, null));
        value.put("empty", Arrays.asList(Map.of(), List.of(), ""));
        Harness.same(Json.read(Json.write(value)), value);
    }

    public void testWhatJsonAllows() throws Exception {
        Harness.same(read(" \t\r\n[ 1 , 2 ] "), List.of(1L, 2L));
        Harness.same(read("\"\\u00fc\\ud83d\\udc8c\\n\\/\\b\\f\\r\\t\""), "ü💌\n/\b\f\r\t");
        Harness.same(read("{\"a\":1,\"a\":2}"), Map.of("a", 2L));
        Harness.same(read("-0"), 0L);
        Harness.same(read("1E+2"), 100.0);
        Harness.same(read("1234567890123456789012"), 1234567890123456789012.0);
    }

    public void testWhatItDoesNot() {
        List<String> malformed = new ArrayList<>(List.of(
                "", " ", "tru", "nul", "NaN", "Infinity", "-Infinity", "-", "+1", "01", "1.", ".5", "1e", "1e+", "0x10",
                "[", "]", "[1", "[1,", "[1,]", "[,1]", "{", "{\"a\"", "{\"a\":", "{\"a\":1", "{\"a\":1,}", "{a:1}",
                "{1:1}", "\"", "\"a", "\"\\", "\"\\x\"", "\"\\u12\"", "\"\\u12g4\"", "\"a\nb\"", "1 2", "{} x",
                "'a'", "// a"));
        malformed.add("[".repeat(100_000));
        malformed.add("{\"a\":".repeat(100_000));
        for (String text : malformed) {
            Harness.thrown(Json.MalformedException.class, () -> read(text));
        }
        Harness.thrown(Json.MalformedException.class, () -> Json.read(new byte[] {'"', (byte) 0xfc, '"'}));
    }

    public void testWhatJsonHasNoWordFor() {
        for (Object value : List.of(Double.NaN, Float.POSITIVE_INFINITY, new Object(), new byte[0])) {
            Harness.thrown(Json.MalformedException.class, () -> Json.write(value));
        }
        List<Object> endless = new ArrayList<>();
        endless.add(endless);
        Harness.thrown(Json.MalformedException.class, () -> Json.write(endless));
    }

    private static Object read(String text) throws Json.MalformedException {
        return Json.read(text.getBytes(StandardCharsets.UTF_8));
    }
}
