package example.posthouse;

import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.SocketTimeoutException;
import java.net.UnknownHostException;
import java.net.http.HttpTimeoutException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyStore;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;

/** What the cases of sdks/conformance can't show of a library in every language: threads, transports, proxies, TLS. */
public final class ClientTest {
    private static final String KEY = "ph_test_0123456789";
    private static final Email EMAIL = Email.builder()
            .from("hello@acme.example").to("ada@example.net").subject("Hello").text("Good morning.").build();
    private static final char[] STORE_PASSWORD = "changeit".toCharArray();

    public void testAnEmailSaysItsTimeItsMetadataAndThatItIsForgotten() {
        Email email = Email.builder().from("hello@acme.example").text("Hi.")
                .sendAt(Instant.parse("2030-06-01T09:00:00Z")).metadata("order", "1001").content("forget")
                .build();
        String written = new String(email.toJson(), StandardCharsets.UTF_8);
        Harness.check(written.contains("\"send_at\":\"2030-06-01T09:00:00Z\""), written);
        Harness.check(written.contains("\"metadata\":{\"order\":\"1001\"}"), written);
        Harness.check(written.contains("\"content\":\"forget\""), written);
        Harness.check(!new String(EMAIL.toJson(), StandardCharsets.UTF_8).contains("send_at"), "it has no time");
    }

    public void testThreadsShareAClient() throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(8);
        try (Service service = new Service()) {
            PosthouseClient client = new PosthouseClient(Credential.apiKey(KEY), "http://127.0.0.1:" + service.port());
            List<Future<Sent>> all = new ArrayList<>();
            for (int number = 0; number < 40; number++) {
                all.add(pool.submit(() -> client.send(EMAIL)));
            }
            for (Future<Sent> one : all) {
                Harness.same(one.get().id(), "em_1");
            }
            Harness.same(new HashSet<>(service.keys).size(), 40);
        } finally {
            pool.shutdown();
        }
    }

    public void testATransportOfOnesOwnTakesThePlaceOfHttp() {
        List<Request> requests = new ArrayList<>();
        PosthouseClient client = through((request, timeout) -> {
            requests.add(request);
            byte[] body = Service.ACCEPTED.getBytes(StandardCharsets.US_ASCII);
            return new Answer(202, Map.of("idempotent-replayed", "true"), body);
        });
        Harness.check(client.send(EMAIL).replayed(), "it should be a replay");
        Harness.same(requests.get(0).url(), "https://mail.acme.example/emails");
        Harness.check(!requests.get(0).toString().contains(KEY), "the request shows the key");
    }

    public void testItsExceptionsBecomeOursAndStayTheCause() {
        for (IOException raised : List.of(new SocketTimeoutException("late"), new HttpTimeoutException("late"))) {
            PosthouseClient client = through((request, timeout) -> {
                throw raised;
            });
            Harness.same(Harness.thrown(AttemptTimeoutException.class, () -> client.get("em_1")).getCause(), raised);
        }
        IOException unknown = new UnknownHostException("mail.acme.example");
        PosthouseClient client = through((request, timeout) -> {
            throw unknown;
        });
        Harness.same(Harness.thrown(ConnectionFailedException.class, () -> client.get("em_1")).getCause(), unknown);
    }

    public void testAnInterruptedThreadIsNotHeld() {
        RetryPolicy slow = RetryPolicy.defaults()
                .withBase(Duration.ofHours(1)).withCap(Duration.ofHours(1)).withTotalMax(Duration.ofHours(2));
        PosthouseClient sleeping = PosthouseClient.builder(Credential.apiKey(KEY), "https://mail.acme.example")
                .transport((request, timeout) -> {
                    throw new IOException("broken");
                })
                .retry(slow)
                .debug(event -> Thread.currentThread().interrupt())
                .build();
        Harness.thrown(CallInterruptedException.class, () -> sleeping.get("em_1"));
        Harness.check(Thread.interrupted(), "the thread should still be interrupted");
        PosthouseClient asking = through((request, timeout) -> {
            throw new InterruptedException();
        });
        PosthouseException error = Harness.thrown(CallInterruptedException.class, () -> asking.get("em_1"));
        Harness.check(Thread.interrupted() && !error.isRetryable(), "the thread should still be interrupted");
    }

    public void testAServiceThatNeverReadsDoesNotHoldAWriter() throws Exception {
        try (ServerSocket deaf = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
            PosthouseClient client = PosthouseClient.builder(
                            Credential.apiKey(KEY), "http://127.0.0.1:" + deaf.getLocalPort())
                    .timeout(Duration.ofMillis(300)).retry(RetryPolicy.none()).build();
            Attachment attachment = Attachment.of("a.bin", new byte[1 << 24]);
            Email large = Email.builder().from("a@acme.example").attach(attachment).build();
            Harness.thrown(AttemptTimeoutException.class, () -> client.send(large));
        }
    }

    public void testAProxyIsAskedForTheWholeAddress() throws Exception {
        try (Service proxy = new Service()) {
            String url = "http://proxy%20user:pass+word@127.0.0.1:" + proxy.port();
            PosthouseClient.builder(Credential.apiKey(KEY), "http://mail.acme.invalid/api")
                    .transport(new HttpTransport().throughProxy(url)).build().send(EMAIL);
            Harness.same(proxy.lines, List.of("POST http://mail.acme.invalid/api/emails HTTP/1.1"));
            Harness.same(proxy.proxyAuthorizations, List.of(basic("proxy user:pass+word")));
        }
    }

    public void testAProxyThatIsNoAddressIsRefused() {
        for (String url : List.of("proxy:3128", "socks5://proxy:1080", "https://proxy:3128", "http://", "http://u@",
                "http://proxy:70000", "http://%zz@proxy:3128")) {
            Harness.thrown(InvalidArgumentException.class, () -> new HttpTransport().throughProxy(url));
        }
    }

    public void testTlsDirectlyAndThroughAProxy() throws Exception {
        SSLContext context = certified();
        try (Service service = new Service(context); Service proxy = new Service()) {
            HttpTransport direct = new HttpTransport().trusting(context);
            HttpTransport around = direct.throughProxy("http://user:word@127.0.0.1:" + proxy.port());
            String url = "https://localhost:" + service.port();
            for (HttpTransport transport : List.of(direct, around)) {
                PosthouseClient client =
                        PosthouseClient.builder(Credential.apiKey(KEY), url).transport(transport).build();
                Harness.same(client.send(EMAIL).id(), "em_1");
            }
            Harness.same(service.lines, List.of("POST /emails HTTP/1.1", "POST /emails HTTP/1.1"));
            Harness.same(proxy.lines, List.of("CONNECT localhost:" + service.port() + " HTTP/1.1"));
            // The proxy's password is the proxy's alone.
            Harness.same(proxy.proxyAuthorizations, List.of(basic("user:word")));
            Harness.same(service.proxyAuthorizations, List.of("none", "none"));
            // Neither an untrusted certificate nor that of another host is accepted.
            for (PosthouseClient.Builder one : List.of(
                    PosthouseClient.builder(Credential.apiKey(KEY), url),
                    PosthouseClient.builder(Credential.apiKey(KEY), url.replace("localhost", "127.0.0.1"))
                            .transport(direct))) {
                PosthouseClient client = one.retry(RetryPolicy.none()).build();
                Harness.thrown(ConnectionFailedException.class, () -> client.send(EMAIL));
            }
            Harness.same(service.lines.size(), 2);
        }
    }

    public void testNoSecretIsPrinted() {
        Credential credential = Credential.basic("acme", "correct horse battery");
        HttpTransport transport = new HttpTransport().throughProxy("http://user:proxyword@127.0.0.1:3128");
        PosthouseClient.Builder builder =
                PosthouseClient.builder(credential, "https://mail.acme.example").transport(transport);
        String shown = credential + " " + transport + " " + builder + " " + builder.build();
        for (String secret : List.of("correct horse", basic("acme:correct horse battery").substring(6), "proxyword")) {
            Harness.check(!shown.contains(secret), secret + " is to be seen in " + shown);
        }
    }

    public void testAddresses() {
        Harness.same(Address.parsed("http://my_service/a").host(), "my_service");
        Harness.same(Address.parsed("https://[::1]:8443/a/b").hostAndPort(), "[::1]:8443");
        Harness.same(Address.parsed("https://mail.acme.example").port(), 443);
        Harness.same(Address.parsed("http://mail.acme.example:/").port(), 80);
        Harness.same(Address.checked("http://mail.acme.example/a@b//"), "http://mail.acme.example/a@b");
        for (String url : List.of("", "http:", "http://", "http:///a", "http://:80", "http://a:0", "http://a:65536",
                "http://a:b", "http://a b", "http://a\n", "http://ä", "http://a\\b", "http://u@a", "//a",
                "file:///a")) {
            Harness.same(Address.parsed(url), null);
        }
    }

    public void testAnswersInEveryFraming() throws Exception {
        for (String text : List.of(
                "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello, and more",
                "HTTP/1.0 200\r\n\r\nhello",
                "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n"
                        + "2;a=b\r\nhe\r\n3 \r\nllo\r\n0\r\nX-Trailer: 1\r\n\r\n")) {
            Harness.same(new String(answer(text).body(), StandardCharsets.US_ASCII), "hello");
        }
        Harness.same(answer("HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n").body().length, 0);
        Harness.same(answer("HTTP/1.1 429 \r\nRETRY-AFTER:  7 \r\n\r\n").headers().get("retry-after"), "7");
    }

    public void testWhatIsNoAnswer() {
        List<String> broken = new ArrayList<>(List.of(
                "", "HTTP/1.1 200 OK\r\n", "HTTP/2 200 OK\r\n\r\n", "HTTP/1.1 2000 OK\r\n\r\n",
                "HTTP/1.1 099 OK\r\n\r\n",
                "HTTP/1.1 200 OK\r\nno header\r\n\r\n", "HTTP/1.1 200 OK\r\n: x\r\n\r\n",
                "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell",
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello!\r\n0\r\n\r\n",
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"));
        broken.add("HTTP/1.1 100 Continue\r\n\r\n".repeat(1_000));
        broken.add("HTTP/1.1 200 OK\r\n" + "X: y\r\n".repeat(100_000) + "\r\n");
        for (String text : broken) {
            Harness.thrown(IOException.class, () -> answer(text));
        }
    }

    private static Answer answer(String text) throws IOException {
        return new AnswerReader(new ByteArrayInputStream(text.getBytes(StandardCharsets.ISO_8859_1))).answer();
    }

    private static PosthouseClient through(Transport transport) {
        return PosthouseClient.builder(Credential.apiKey(KEY), "https://mail.acme.example")
                .transport(transport).retry(RetryPolicy.none()).build();
    }

    private static String basic(String pair) {
        return "Basic " + Base64.getEncoder().encodeToString(pair.getBytes(StandardCharsets.UTF_8));
    }

    /** Both has a new certificate of localhost and trusts it. */
    private static SSLContext certified() throws Exception {
        Path store = Files.createTempDirectory("posthouse-java").resolve("store.p12");
        try {
            String keytool = Path.of(System.getProperty("java.home"), "bin", "keytool").toString();
            Process made = new ProcessBuilder(
                            keytool, "-genkeypair", "-keyalg", "EC", "-dname", "CN=localhost",
                            "-ext", "san=dns:localhost",
                            "-storetype", "PKCS12", "-keystore", store.toString(),
                            "-storepass", new String(STORE_PASSWORD), "-alias", "localhost", "-validity", "2")
                    .redirectErrorStream(true).start();
            made.getInputStream().readAllBytes();
            Harness.same(made.waitFor(), 0);
            KeyStore keys = KeyStore.getInstance("PKCS12");
            try (InputStream input = Files.newInputStream(store)) {
                keys.load(input, STORE_PASSWORD);
            }
            KeyStore trusted = KeyStore.getInstance("PKCS12");
            trusted.load(null, null);
            trusted.setCertificateEntry("localhost", keys.getCertificate("localhost"));
            KeyManagerFactory having = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
            having.init(keys, STORE_PASSWORD);
            TrustManagerFactory trusting = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
            trusting.init(trusted);
            SSLContext context = SSLContext.getInstance("TLS");
            context.init(having.getKeyManagers(), trusting.getTrustManagers(), null);
            return context;
        } finally {
            Files.deleteIfExists(store);
            Files.delete(store.getParent());
        }
    }
}
