package example.posthouse;

import java.io.IOException;
import java.time.Duration;

/** One HTTP exchange after another; {@link HttpTransport} is the usual one. Used by several threads at once. */
@FunctionalInterface
public interface Transport {
    /**
     * The answer, whatever its status; redirects are not followed.
     *
     * @throws java.net.SocketTimeoutException when the whole takes longer than {@code timeout}; a
     *     {@link java.net.http.HttpTimeoutException} means the same
     * @throws IOException when there is no whole answer
     */
    Answer exchange(Request request, Duration timeout) throws IOException, InterruptedException;
}
