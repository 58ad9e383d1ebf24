package example.posthouse;

import java.io.BufferedInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import javax.net.ssl.SSLContext;

/** Accepts whatever comes, and as a proxy connects to whatever is asked for. */
final class Service implements AutoCloseable {
    static final String ACCEPTED = "{\"id\":\"em_1\",\"status\":\"queued\"}";

    final List<String> lines = new CopyOnWriteArrayList<>();
    final List<String> keys = new CopyOnWriteArrayList<>();
    final List<String> proxyAuthorizations = new CopyOnWriteArrayList<>();
    private final ServerSocket listening;

    Service() throws IOException {
        this(new ServerSocket(0, 50, InetAddress.getLoopbackAddress()));
    }

    Service(SSLContext context) throws IOException {
        this(context.getServerSocketFactory().createServerSocket(0, 50, InetAddress.getLoopbackAddress()));
    }

    private Service(ServerSocket listening) {
        this.listening = listening;
        inBackground(() -> {
            while (true) {
                Socket one = listening.accept();
                inBackground(() -> serve(one));
            }
        });
    }

    int port() {
        return listening.getLocalPort();
    }

    @Override
    public void close() throws IOException {
        listening.close();
    }

    private void serve(Socket socket) throws IOException {
        try (socket) {
            InputStream input = new BufferedInputStream(socket.getInputStream());
            OutputStream output = socket.getOutputStream();
            String line = line(input);
            Map<String, String> headers = new ConcurrentHashMap<>();
            for (String header = line(input); !header.isEmpty(); header = line(input)) {
                String[] pair = header.split(": ", 2);
                headers.put(pair[0].toLowerCase(Locale.ROOT), pair[1]);
            }
            lines.add(line);
            proxyAuthorizations.add(headers.getOrDefault("proxy-authorization", "none"));
            if (line.startsWith("CONNECT ")) {
                connect(line.split(" ")[1], input, output);
                return;
            }
            keys.add(headers.getOrDefault("idempotency-key", "none"));
            input.readNBytes(Integer.parseInt(headers.getOrDefault("content-length", "0")));
            String answer = "HTTP/1.1 202 Accepted\r\nContent-Length: " + ACCEPTED.length() + "\r\n\r\n" + ACCEPTED;
            output.write(answer.getBytes(StandardCharsets.US_ASCII));
        }
    }

    private static void connect(String target, InputStream input, OutputStream output) throws IOException {
        String[] parts = target.split(":");
        try (Socket onwards = new Socket(parts[0], Integer.parseInt(parts[1]))) {
            output.write("HTTP/1.1 200 Connected\r\n\r\n".getBytes(StandardCharsets.US_ASCII));
            inBackground(() -> input.transferTo(onwards.getOutputStream()));
            onwards.getInputStream().transferTo(output);
        }
    }

    private static String line(InputStream input) throws IOException {
        StringBuilder line = new StringBuilder();
        for (int one = input.read(); one != '\n'; one = input.read()) {
            if (one < 0) {
                throw new IOException("the connection ended");
            }
            line.append((char) one);
        }
        return line.toString().strip();
    }

    private static void inBackground(Harness.Act act) {
        Thread thread = new Thread(() -> {
            try {
                act.run();
            } catch (Exception over) {
                // The other side went away, which is how each of these ends.
            }
        });
        thread.setDaemon(true);
        thread.start();
    }
}
