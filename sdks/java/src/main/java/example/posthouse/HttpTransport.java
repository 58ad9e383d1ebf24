package example.posthouse;

import java.io.BufferedInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.net.SocketTimeoutException;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Base64;
import java.util.concurrent.Future;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLParameters;
import javax.net.ssl.SSLSocket;
import javax.net.ssl.SSLSocketFactory;

/**
 * The usual transport: HTTP/1.1, with a connection of its own for each attempt.
 *
 * <p>It doesn't use {@link java.net.http.HttpClient}, which by itself sends a GET again whose connection was lost, and
 * whose time-out ends with the head of the answer: here an attempt is one attempt, and takes no longer than it may.
 */
public final class HttpTransport implements Transport {
    // What blocks in a write or in a handshake knows no time-out, so that connections are closed from without.
    private static final ScheduledThreadPoolExecutor WATCH = new ScheduledThreadPoolExecutor(1, task -> {
        Thread thread = new Thread(task, "posthouse-deadlines");
        thread.setDaemon(true);
        return thread;
    });

    static {
        WATCH.setRemoveOnCancelPolicy(true);
    }

    private final Address proxy;
    private final String proxyAuthorization;
    private final SSLContext trusting;

    /** Direct, and trusting whom Java trusts. */
    public HttpTransport() {
        this(null, null, null);
    }

    private HttpTransport(Address proxy, String proxyAuthorization, SSLContext trusting) {
        this.proxy = proxy;
        this.proxyAuthorization = proxyAuthorization;
        this.trusting = trusting;
    }

    /** The same through a proxy: {@code http://host:port}, with a user name and password in it or without. */
    public HttpTransport throughProxy(String url) {
        int start = url.indexOf("://") + 3;
        int at = url.indexOf('@');
        boolean hasUser = start > 2 && at >= start;
        Address address = Address.parsed(hasUser ? url.substring(0, start) + url.substring(at + 1) : url);
        Checks.checked(url, address != null && !address.isSecure(),
                "a proxy must be http://host:port, with a user name and password or not");
        String authorization = hasUser ? proxyAuthorization(url.substring(start, at)) : null;
        return new HttpTransport(address, authorization, trusting);
    }

    /** The same, trusting whom that context trusts. */
    public HttpTransport trusting(SSLContext context) {
        return new HttpTransport(proxy, proxyAuthorization, context);
    }

    private static String proxyAuthorization(String user) {
        try {
            String pair = URLDecoder.decode(user.replace("+", "%2B"), StandardCharsets.UTF_8);
            String whole = user.indexOf(':') < 0 ? pair + ":" : pair;
            return "Basic " + Base64.getEncoder().encodeToString(whole.getBytes(StandardCharsets.UTF_8));
        } catch (IllegalArgumentException malformed) {
            throw new InvalidArgumentException("the proxy's user name or password is not percent-encoded");
        }
    }

    @Override
    public Answer exchange(Request request, Duration timeout) throws IOException {
        Address service = Address.parsed(request.url());
        Checks.checked(request, service != null, "this is no address");
        long end = System.nanoTime() + Checks.nanos(timeout);
        try (Socket socket = connected(proxy == null ? service : proxy, end)) {
            Future<?> watch = WATCH.schedule(() -> close(socket), end - System.nanoTime(), TimeUnit.NANOSECONDS);
            try {
                return exchange(request, service, socket);
            } finally {
                watch.cancel(false);
            }
        } catch (IOException error) {
            if (System.nanoTime() - end < 0) {
                throw error;
            }
            SocketTimeoutException late = new SocketTimeoutException("the attempt took too long");
            late.initCause(error);
            throw late;
        }
    }

    private Answer exchange(Request request, Address service, Socket socket) throws IOException {
        if (!service.isSecure()) {
            // A proxy is asked for the whole address.
            String target = proxy == null ? service.path() : request.url();
            return exchange(request, service, target, proxyAuthorization, socket);
        }
        if (proxy != null) {
            passThrough(service, socket);
        }
        SSLSocketFactory factory =
                trusting == null ? (SSLSocketFactory) SSLSocketFactory.getDefault() : trusting.getSocketFactory();
        try (SSLSocket secure = (SSLSocket) factory.createSocket(socket, service.host(), service.port(), true)) {
            SSLParameters parameters = secure.getSSLParameters();
            parameters.setEndpointIdentificationAlgorithm("HTTPS");
            secure.setSSLParameters(parameters);
            secure.startHandshake();
            return exchange(request, service, service.path(), null, secure);
        }
    }

    private static Answer exchange(
            Request request, Address service, String target, String proxyAuthorization, Socket socket)
            throws IOException {
        StringBuilder head = new StringBuilder(request.method() + " " + target + " HTTP/1.1\r\n");
        head.append("Host: ").append(service.authority()).append("\r\n");
        request.headers().forEach((name, value) -> head.append(name).append(": ").append(value).append("\r\n"));
        if (proxyAuthorization != null) {
            head.append("Proxy-Authorization: ").append(proxyAuthorization).append("\r\n");
        }
        if (request.body() != null) {
            head.append("Content-Length: ").append(request.body().length).append("\r\n");
        }
        head.append("Connection: close\r\n\r\n");
        IOException unsent = null;
        try {
            OutputStream output = socket.getOutputStream();
            output.write(head.toString().getBytes(StandardCharsets.ISO_8859_1));
            if (request.body() != null) {
                output.write(request.body());
            }
            output.flush();
        } catch (IOException error) {
            // A service that refuses a long body may answer and close before it has read it all.
            unsent = error;
        }
        try {
            return new AnswerReader(new BufferedInputStream(socket.getInputStream())).answer();
        } catch (IOException error) {
            throw unsent == null ? error : unsent;
        }
    }

    private void passThrough(Address service, Socket socket) throws IOException {
        String head = "CONNECT " + service.hostAndPort() + " HTTP/1.1\r\nHost: " + service.hostAndPort() + "\r\n"
                + (proxyAuthorization == null ? "" : "Proxy-Authorization: " + proxyAuthorization + "\r\n") + "\r\n";
        socket.getOutputStream().write(head.getBytes(StandardCharsets.ISO_8859_1));
        // Without a buffer, which could take more than the head.
        InputStream input = socket.getInputStream();
        int status = new AnswerReader(input).head().status();
        if (status != 200) {
            throw new IOException("the proxy answered " + status);
        }
    }

    /** Connected to the first of the host's addresses that takes us. */
    private static Socket connected(Address to, long end) throws IOException {
        IOException failure = null;
        for (InetAddress address : InetAddress.getAllByName(to.host())) {
            Socket socket = new Socket();
            try {
                long left = TimeUnit.NANOSECONDS.toMillis(end - System.nanoTime());
                socket.connect(new InetSocketAddress(address, to.port()), (int) Math.max(1, Math.min(left, 1 << 30)));
                socket.setTcpNoDelay(true);
                return socket;
            } catch (IOException error) {
                socket.close();
                failure = error;
            }
        }
        throw failure == null ? new IOException("the host has no address") : failure;
    }

    private static void close(Socket socket) {
        try {
            socket.close();
        } catch (IOException alreadyBroken) {
            // Then it is over, too.
        }
    }

    @Override
    public String toString() {
        return "HttpTransport[" + (proxy == null ? "direct" : proxy.hostAndPort()) + "]";
    }
}
