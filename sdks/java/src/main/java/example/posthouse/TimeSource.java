package example.posthouse;

import java.time.Duration;
import java.time.Instant;

/** What a client knows of time; replace it for tests without waiting. Used by several threads at once. */
public interface TimeSource {
    Instant now();

    /** Nanoseconds that never run backwards, from anywhere. */
    long nanoTime();

    void sleep(Duration wait) throws InterruptedException;

    /** The system's. */
    static TimeSource system() {
        return new TimeSource() {
            @Override
            public Instant now() {
                return Instant.now();
            }

            @Override
            public long nanoTime() {
                return System.nanoTime();
            }

            @Override
            public void sleep(Duration wait) throws InterruptedException {
                long nanos = Checks.nanos(wait);
                Thread.sleep(nanos / 1_000_000, (int) (nanos % 1_000_000));
            }
        };
    }
}
