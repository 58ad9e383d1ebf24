package posthouse_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"posthouse.example/posthouse-go"
)

// What the cases of sdks/conformance can't show of a library in every language: goroutines, contexts, transports,
// proxies, TLS, and the many ways to print.

const (
	key      = "ph_test_0123456789"
	accepted = `{"id":"em_1","status":"queued"}`
)

var email = posthouse.Email{
	From: "hello@acme.example", To: []string{"ada@example.net"}, Subject: "Hello", Text: "Good morning.",
}

// service accepts whatever comes, and as a proxy connects to whatever is asked for.
type service struct {
	sync.Mutex
	targets        []string
	keys           map[string]bool
	authorizations []string
}

func (s *service) ServeHTTP(writer http.ResponseWriter, request *http.Request) {
	s.Lock()
	s.targets = append(s.targets, request.Method+" "+request.RequestURI)
	s.authorizations = append(s.authorizations, request.Header.Get("Proxy-Authorization"))
	if s.keys == nil {
		s.keys = map[string]bool{}
	}
	s.keys[request.Header.Get("Idempotency-Key")] = true
	s.Unlock()
	if request.Method == http.MethodConnect {
		connect(writer, request.RequestURI)
		return
	}
	writer.WriteHeader(http.StatusAccepted)
	io.WriteString(writer, accepted)
}

func connect(writer http.ResponseWriter, address string) {
	onwards, err := net.Dial("tcp", address)
	if err != nil {
		writer.WriteHeader(http.StatusBadGateway)
		return
	}
	defer onwards.Close()
	back, _, err := writer.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	defer back.Close()
	io.WriteString(back, "HTTP/1.1 200 Connected\r\n\r\n")
	go io.Copy(onwards, back)
	io.Copy(back, onwards)
}

func client(t *testing.T, url string, options ...posthouse.Option) *posthouse.Client {
	t.Helper()
	made, err := posthouse.NewClient(posthouse.APIKey(key), url, options...)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func TestAnEmailSaysItsTimeItsMetadataAndThatItIsForgotten(t *testing.T) {
	var body []byte
	server := httptest.NewServer(http.HandlerFunc(func(writer http.ResponseWriter, request *http.Request) {
		body, _ = io.ReadAll(request.Body)
		writer.WriteHeader(http.StatusAccepted)
		_, _ = io.WriteString(writer, accepted)
	}))
	defer server.Close()
	later := email
	later.SendAt = time.Date(2030, 6, 1, 11, 0, 0, 0, time.FixedZone("", 2*60*60))
	later.Metadata = map[string]string{"order": "1001"}
	later.Content = "forget"
	if _, err := client(t, server.URL).Send(context.Background(), later); err != nil {
		t.Fatal(err)
	}
	if end := `,"send_at":"2030-06-01T09:00:00Z","metadata":{"order":"1001"},"content":"forget"}`; !strings.HasSuffix(string(body), end) {
		t.Errorf("the body is %s", body)
	}
}

func TestGoroutinesShareAClient(t *testing.T) {
	served := &service{}
	server := httptest.NewServer(served)
	defer server.Close()
	shared := client(t, server.URL)
	var all sync.WaitGroup
	for range 40 {
		all.Add(1)
		go func() {
			defer all.Done()
			if sent, err := shared.Send(context.Background(), email); err != nil || sent.ID != "em_1" {
				t.Errorf("sent %v, %v", sent, err)
			}
		}()
	}
	all.Wait()
	if len(served.keys) != 40 {
		t.Errorf("40 sends had %d keys", len(served.keys))
	}
}

func TestAConnectionServesManyCalls(t *testing.T) {
	connections := 0
	server := httptest.NewUnstartedServer(&service{})
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections++
		}
	}
	server.Start()
	shared := client(t, server.URL)
	for range 5 {
		if _, err := shared.Send(context.Background(), email); err != nil {
			t.Fatal(err)
		}
	}
	server.Close()
	if connections != 1 {
		t.Errorf("5 sends took %d connections", connections)
	}
}

func TestACancelledCallEndsAtOnce(t *testing.T) {
	came, ended := make(chan struct{}), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, request *http.Request) {
		close(came)
		<-request.Context().Done()
		close(ended)
	}))
	defer server.Close()
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-came
		cancel()
	}()
	_, err := client(t, server.URL).Get(ctx, "em_1")
	if !errors.Is(err, context.Canceled) {
		t.Errorf("the error is %v", err)
	}
	<-ended
}

func TestACancelledSleepEndsAtOnce(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	policy := posthouse.RetryPolicy{
		AttemptsMax: 2, Base: time.Hour, Factor: 1, Cap: time.Hour, TotalMax: 2 * time.Hour,
	}
	slow := client(t, "http://mail.acme.example", posthouse.WithTransport(broken{errors.New("broken")}),
		posthouse.WithRetry(policy), posthouse.WithDebug(func(posthouse.DebugEvent) { cancel() }))
	if _, err := slow.Get(ctx, "em_1"); !errors.Is(err, context.Canceled) {
		t.Errorf("the error is %v", err)
	}
}

func TestADeadlineOfTheCallerIsNotTriedAgain(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	attempts := 0
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, request *http.Request) {
		<-request.Context().Done()
	}))
	defer server.Close()
	counted := client(t, server.URL, posthouse.WithDebug(func(posthouse.DebugEvent) { attempts++ }))
	_, err := counted.Get(ctx, "em_1")
	if !errors.Is(err, context.DeadlineExceeded) || attempts != 1 {
		t.Errorf("after %d attempts: %v", attempts, err)
	}
}

type broken struct{ err error }

func (b broken) RoundTrip(*http.Request) (*http.Response, error) { return nil, b.err }

type recorded struct{ requests []*http.Request }

func (r *recorded) RoundTrip(request *http.Request) (*http.Response, error) {
	r.requests = append(r.requests, request)
	return &http.Response{
		StatusCode: http.StatusAccepted,
		Header:     http.Header{"Idempotent-Replayed": {"true"}},
		Body:       io.NopCloser(strings.NewReader(accepted)),
	}, nil
}

func TestATransportOfOnesOwnTakesThePlaceOfHTTP(t *testing.T) {
	transport := &recorded{}
	sent, err := client(t, "https://mail.acme.example/", posthouse.WithTransport(transport)).Send(
		context.Background(), email)
	if err != nil || !sent.Replayed {
		t.Fatalf("sent %v, %v", sent, err)
	}
	if url := transport.requests[0].URL.String(); url != "https://mail.acme.example/emails" {
		t.Errorf("it asked for %s", url)
	}
}

func TestTheErrorsOfATransportBecomeOursAndStayItsOwn(t *testing.T) {
	reset := errors.New("reset")
	failing := client(t, "https://mail.acme.example", posthouse.WithTransport(broken{reset}),
		posthouse.WithRetry(posthouse.NoRetries()))
	_, err := failing.Get(context.Background(), "em_1")
	var connection *posthouse.ConnectionError
	var ours posthouse.Error
	if !errors.As(err, &connection) || !errors.As(err, &ours) || !errors.Is(err, reset) {
		t.Errorf("the error is %#v", err)
	}
	late := client(t, "https://mail.acme.example", posthouse.WithTransport(broken{context.DeadlineExceeded}),
		posthouse.WithRetry(posthouse.NoRetries()))
	_, err = late.Get(context.Background(), "em_1")
	var timeout *posthouse.TimeoutError
	var timed interface{ Timeout() bool }
	if !errors.As(err, &timeout) || !errors.As(err, &timed) || !timed.Timeout() {
		t.Errorf("the error is %#v", err)
	}
}

func TestAProxyIsAskedForTheWholeAddress(t *testing.T) {
	proxy := &service{}
	server := httptest.NewServer(proxy)
	defer server.Close()
	address := "http://proxy%20user:pass%20word@" + server.Listener.Addr().String()
	through := client(t, "http://mail.acme.invalid/api", posthouse.WithProxy(address))
	if _, err := through.Send(context.Background(), email); err != nil {
		t.Fatal(err)
	}
	if proxy.targets[0] != "POST http://mail.acme.invalid/api/emails" {
		t.Errorf("it was asked for %s", proxy.targets[0])
	}
	if proxy.authorizations[0] != basic("proxy user", "pass word") {
		t.Errorf("it was shown %s", proxy.authorizations[0])
	}
}

func TestTLSThroughAProxy(t *testing.T) {
	served, proxy := &service{}, &service{}
	secure, between := httptest.NewTLSServer(served), httptest.NewServer(proxy)
	defer between.Close()
	defer secure.Close()
	transport := secure.Client().Transport.(*http.Transport).Clone()
	defer transport.CloseIdleConnections()
	request, _ := http.NewRequest(http.MethodGet, "http://user:word@"+between.Listener.Addr().String(), nil)
	transport.Proxy = http.ProxyURL(request.URL)
	through := client(t, secure.URL, posthouse.WithTransport(transport))
	if _, err := through.Send(context.Background(), email); err != nil {
		t.Fatal(err)
	}
	if want := "CONNECT " + secure.Listener.Addr().String(); proxy.targets[0] != want {
		t.Errorf("the proxy was asked for %s", proxy.targets[0])
	}
	// The proxy's password is the proxy's alone.
	if proxy.authorizations[0] != basic("user", "word") || served.authorizations[0] != "" {
		t.Errorf("the proxy was shown %s, the service %s", proxy.authorizations[0], served.authorizations[0])
	}
}

func TestAnUnknownCertificateIsNotTrusted(t *testing.T) {
	served := &service{}
	secure := httptest.NewUnstartedServer(served)
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	defer secure.Close()
	_, err := client(t, secure.URL, posthouse.WithRetry(posthouse.NoRetries())).Send(context.Background(), email)
	var connection *posthouse.ConnectionError
	if !errors.As(err, &connection) || len(served.targets) > 0 {
		t.Errorf("the error is %v, and %v was asked for", err, served.targets)
	}
}

func TestWhatCannotBeUsedIsRefused(t *testing.T) {
	for name, options := range map[string][]posthouse.Option{
		"a proxy without a scheme":     {posthouse.WithProxy("proxy:3128")},
		"a proxy of another scheme":    {posthouse.WithProxy("ftp://proxy:3128")},
		"a proxy without a host":       {posthouse.WithProxy("http://")},
		"a proxy with a wrong port":    {posthouse.WithProxy("http://proxy:70000")},
		"a policy of zeros":            {posthouse.WithRetry(posthouse.RetryPolicy{})},
		"a factor that is no number":   {posthouse.WithRetry(posthouse.RetryPolicy{AttemptsMax: 1, Factor: math.NaN()})},
		"no transport":                 {posthouse.WithTransport(nil)},
		"a transport beside a proxy":   {posthouse.WithTransport(&recorded{}), posthouse.WithProxy("http://proxy:3128")},
		"a suffix with a line break":   {posthouse.WithUserAgentSuffix("a\nb")},
		"a time-out of less than none": {posthouse.WithTimeout(-1)},
	} {
		_, err := posthouse.NewClient(posthouse.APIKey(key), "https://mail.acme.example", options...)
		var refused *posthouse.InvalidArgumentError
		if !errors.As(err, &refused) {
			t.Errorf("%s: %v", name, err)
		}
	}
	var refused *posthouse.InvalidArgumentError
	if _, err := posthouse.NewClient(posthouse.Credential{}, "https://mail.acme.example"); !errors.As(err, &refused) {
		t.Errorf("no credential: %v", err)
	}
	untold := posthouse.Email{From: "a@acme.example", Variables: map[string]any{"x": math.Inf(1)}}
	transport := &recorded{}
	_, err := client(t, "https://mail.acme.example", posthouse.WithTransport(transport)).Send(
		context.Background(), untold)
	if !errors.As(err, &refused) || len(transport.requests) > 0 {
		t.Errorf("a variable that JSON has no word for: %v", err)
	}
}

func TestAnEmptyFileIsAFile(t *testing.T) {
	transport := &recorded{}
	with := email
	with.Attachments = []posthouse.Attachment{{Filename: "empty.csv"}}
	if _, err := client(t, "https://mail.acme.example", posthouse.WithTransport(transport)).Send(
		context.Background(), with); err != nil {
		t.Fatal(err)
	}
	var body struct{ Attachments []map[string]any }
	content, _ := transport.requests[0].GetBody()
	if err := json.NewDecoder(content).Decode(&body); err != nil || body.Attachments[0]["content"] != "" {
		t.Errorf("attached %v, %v", body.Attachments, err)
	}
}

func TestNoSecretIsPrinted(t *testing.T) {
	credential := posthouse.Basic("acme", "correct horse battery")
	made, err := posthouse.NewClient(credential, "https://mail.acme.example")
	if err != nil {
		t.Fatal(err)
	}
	within := struct {
		client     posthouse.Client
		pointer    *posthouse.Client
		credential posthouse.Credential
	}{*made, made, credential}
	var shown bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		for _, one := range []any{made, *made, credential, &credential, within} {
			fmt.Fprintf(&shown, verb+"\n", one)
		}
	}
	for _, one := range []any{made, credential, within} {
		text, _ := json.Marshal(one)
		shown.Write(text)
	}
	authorization := basic("acme", "correct horse battery")
	for _, secret := range []string{"correct horse", fmt.Sprintf("%x", "correct horse"), authorization[6:]} {
		if strings.Contains(shown.String(), secret) {
			t.Errorf("%q is to be seen in %s", secret, &shown)
		}
	}
}
