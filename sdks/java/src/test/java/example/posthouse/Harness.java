package example.posthouse;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;

/** Runs every public method whose name begins with test, each on an object of its own, without any framework. */
public final class Harness {
    private Harness() {}

    public static void main(String[] arguments) throws ReflectiveOperationException {
        int passed = 0;
        int failed = 0;
        for (Class<?> one : List.of(JsonTest.class, ClientTest.class, ConformanceTest.class)) {
            Method[] methods = one.getMethods();
            Arrays.sort(methods, Comparator.comparing(Method::getName));
            for (Method method : methods) {
                if (!method.getName().startsWith("test")) {
                    continue;
                }
                try {
                    method.invoke(one.getConstructor().newInstance());
                    passed++;
                } catch (InvocationTargetException thrown) {
                    failed++;
                    System.out.println("FAILED " + one.getSimpleName() + "." + method.getName());
                    thrown.getCause().printStackTrace(System.out);
                }
            }
        }
        System.out.println(passed + " tests passed, " + failed + " failed");
        System.exit(failed == 0 && passed > 0 ? 0 : 1);
    }

    static void check(boolean is, String message) {
        if (!is) {
            throw new AssertionError(message);
        }
    }

    static void same(Object actual, Object expected) {
        check(expected == null ? actual == null : expected.equals(actual), "it is " + actual + ", not " + expected);
    }

    /** What is thrown, which must be of that type. */
    static <T extends Throwable> T thrown(Class<T> type, Act act) {
        try {
            act.run();
        } catch (Throwable error) {
            if (type.isInstance(error)) {
                return type.cast(error);
            }
            throw new AssertionError("it threw " + error, error);
        }
        throw new AssertionError("it should have thrown " + type.getSimpleName());
    }

    /** Something that may throw. */
    interface Act {
        void run() throws Exception;
    }
}
