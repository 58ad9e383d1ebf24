package example.posthouse;

import java.time.DateTimeException;
import java.time.Instant;
import java.time.OffsetDateTime;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * A JSON object, read field by field. A later version of the service may return more: a value of
 * an unexpected type counts as absent.
 */
record Fields(Map<String, Object> all) {
    static final Fields NONE = new Fields(Map.of());

    /** Null if that is no JSON object. */
    static Fields read(byte[] content) {
        try {
            return of(Json.read(content));
        } catch (Json.MalformedException noJson) {
            return null;
        }
    }

    private static Fields of(Object value) {
        if (!(value instanceof Map<?, ?> given)) {
            return null;
        }
        Map<String, Object> all = new LinkedHashMap<>();
        given.forEach((name, one) -> all.put((String) name, one));
        return new Fields(all);
    }

    /** Null if it is absent, something else, or empty. */
    String text(String name) {
        return all.get(name) instanceof String text && !text.isEmpty() ? text : null;
    }

    Integer number(String name) {
        return all.get(name) instanceof Long number && number == number.intValue() ? number.intValue() : null;
    }

    int count(String name) {
        Integer number = number(name);
        return number == null ? 0 : number;
    }

    boolean isTrue(String name) {
        return Boolean.TRUE.equals(all.get(name));
    }

    Instant moment(String name) {
        try {
            return text(name) == null ? null : OffsetDateTime.parse(text(name)).toInstant();
        } catch (DateTimeException noTime) {
            return null;
        }
    }

    Fields object(String name) {
        return of(all.get(name));
    }

    List<String> texts(String name) {
        List<String> texts = new ArrayList<>();
        for (Object one : list(name)) {
            if (one instanceof String text) {
                texts.add(text);
            }
        }
        return Collections.unmodifiableList(texts);
    }

    List<Fields> objects(String name) {
        List<Fields> objects = new ArrayList<>();
        for (Object one : list(name)) {
            if (one instanceof Map) {
                objects.add(of(one));
            }
        }
        return objects;
    }

    Map<String, String> textsByName(String name) {
        Map<String, String> texts = new LinkedHashMap<>();
        Fields object = object(name);
        if (object != null) {
            object.all.forEach((key, value) -> {
                if (value instanceof String text) {
                    texts.put(key, text);
                }
            });
        }
        return Collections.unmodifiableMap(texts);
    }

    private List<?> list(String name) {
        return all.get(name) instanceof List<?> list ? list : List.of();
    }
}
