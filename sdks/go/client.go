package posthouse

import (
	"context"
	"fmt"
	"math/rand"
	"net"
	"net/http"
	"net/url"
	"time"
)

const (
	attemptTimeout = 10 * time.Second
	waitTimeout    = 60 * time.Second
)

// Client sends email and reports its status. It is safe for concurrent use, and keeps connections open between
// calls. However it is printed, its secrets aren't.
type Client struct{ setup *setup }

// setup is what all calls of a client share.
type setup struct {
	baseURL string
	// A function, of which printing shows no more than an address.
	authorization func() string
	userAgent     string
	timeout       time.Duration
	retry         RetryPolicy
	transport     http.RoundTripper
	proxy         *url.URL
	debug         func(DebugEvent)
	clock         Clock
	random        func() float64
}

// Clock is what a client knows of time. Readings of Now are compared with each other, too, so that the system's clock
// should have its monotonic part.
type Clock interface {
	Now() time.Time
	// Sleep returns early, with the context's error, when the context ends. Called from several goroutines at once.
	Sleep(ctx context.Context, wait time.Duration) error
}

type systemClock struct{}

func (systemClock) Now() time.Time { return time.Now() }

func (systemClock) Sleep(ctx context.Context, wait time.Duration) error {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Option is an option of [NewClient].
type Option func(*setup) error

// WithTimeout says how long an attempt may take as a whole: 10 seconds unless it is given.
func WithTimeout(timeout time.Duration) Option {
	return func(s *setup) error {
		if timeout <= 0 {
			return invalid("the time-out must be above 0")
		}
		s.timeout = timeout
		return nil
	}
}

// WithRetry says how often and how long a call is tried.
func WithRetry(policy RetryPolicy) Option {
	return func(s *setup) error {
		s.retry = policy
		return policy.check()
	}
}

// WithTransport replaces the HTTP client: proxies, certificates and connections are then its own business.
func WithTransport(transport http.RoundTripper) Option {
	return func(s *setup) error {
		if transport == nil {
			return invalid("the transport is nil; leave the option away for the usual one")
		}
		s.transport = transport
		return nil
	}
}

// WithProxy goes through a proxy: http://host:port, with a user name and password in it or without. Proxies of the
// environment are not used.
func WithProxy(address string) Option {
	return func(s *setup) (err error) {
		s.proxy, err = checkedProxy(address)
		return err
	}
}

// WithDebug sets a function that is called for every attempt, without secrets. It may be called from several
// goroutines at once.
func WithDebug(hook func(DebugEvent)) Option {
	return func(s *setup) error {
		s.debug = hook
		return nil
	}
}

// WithUserAgentSuffix identifies the client to the service, such as shop/2.1.
func WithUserAgentSuffix(suffix string) Option {
	return func(s *setup) error {
		if !all(suffix, isPrintable) {
			return invalid("the user agent's suffix may have printable ASCII characters alone")
		}
		if suffix != "" {
			s.userAgent += " " + suffix
		}
		return nil
	}
}

// WithClock replaces time, for tests without waiting.
func WithClock(clock Clock) Option {
	return func(s *setup) error {
		s.clock = clock
		return nil
	}
}

// WithRandom replaces chance, for tests: it returns numbers in [0, 1), to several goroutines at once.
func WithRandom(random func() float64) Option {
	return func(s *setup) error {
		s.random = random
		return nil
	}
}

// NewClient makes a client of the service at the base URL, such as https://mail.example.com.
func NewClient(credential Credential, baseURL string, options ...Option) (*Client, error) {
	s := &setup{
		userAgent: "posthouse-go/" + Version,
		timeout:   attemptTimeout,
		retry:     DefaultRetryPolicy(),
		clock:     systemClock{},
		random:    rand.Float64,
	}
	authorization, err := credential.authorization()
	if err != nil {
		return nil, err
	}
	s.authorization = func() string { return authorization }
	if s.baseURL, err = checkedBaseURL(baseURL); err != nil {
		return nil, err
	}
	for _, option := range options {
		if err := option(s); err != nil {
			return nil, err
		}
	}
	if s.transport != nil && s.proxy != nil {
		return nil, invalid("give a transport or a proxy: a transport of your own has its own proxy")
	}
	if s.transport == nil {
		s.transport = usualTransport(s.proxy)
	}
	return &Client{s}, nil
}

// usualTransport keeps connections. One that the service closed in the meantime is replaced by package net/http itself,
// which sends the request again, with the same key, if nothing of an answer had come: no attempt is counted for that.
func usualTransport(proxy *url.URL) *http.Transport {
	transport := &http.Transport{
		DialContext:         (&net.Dialer{KeepAlive: 30 * time.Second}).DialContext,
		ForceAttemptHTTP2:   true,
		DisableCompression:  true,
		MaxIdleConnsPerHost: 16,
		IdleConnTimeout:     30 * time.Second,
	}
	if proxy != nil {
		transport.Proxy = http.ProxyURL(proxy)
	}
	return transport
}

// Format prints the base URL and nothing secret.
func (c Client) Format(state fmt.State, _ rune) {
	if c.setup == nil {
		fmt.Fprint(state, "posthouse.Client()")
		return
	}
	fmt.Fprintf(state, "posthouse.Client(%q)", c.setup.baseURL)
}

// SendOption is an option of [Client.Send].
type SendOption func(*sending) error

type sending struct{ key string }

// WithIdempotencyKey names the email: with the same key and email it is never sent twice, for 24 hours. Without it a
// new key is made for each call, and used for all of its attempts.
func WithIdempotencyKey(key string) SendOption {
	return func(s *sending) error {
		s.key = key
		return checkIdempotencyKey(key)
	}
}

// Send returns when the email is accepted and queued.
//
// A send whose context ends may or may not have been accepted: send it again with the same key to know.
func (c *Client) Send(ctx context.Context, email Email, options ...SendOption) (*Sent, error) {
	var how sending
	for _, option := range options {
		if err := option(&how); err != nil {
			return nil, err
		}
	}
	body, err := email.written()
	if err != nil {
		return nil, err
	}
	if how.key == "" {
		how.key = newKey()
	}
	headers := http.Header{"Content-Type": {"application/json"}, "Idempotency-Key": {how.key}}
	call := call{http.MethodPost, c.setup.baseURL + "/emails", headers, body, http.StatusAccepted}
	given, answered, err := c.setup.exchange(ctx, call)
	if err != nil {
		return nil, err
	}
	return readSent(given, isTrue(answered.Get("Idempotent-Replayed"))), nil
}

// Get returns the message as it is now.
func (c *Client) Get(ctx context.Context, id string) (*Message, error) {
	escaped, err := escapedID(id)
	if err != nil {
		return nil, err
	}
	call := call{http.MethodGet, c.setup.baseURL + "/emails/" + escaped, nil, nil, http.StatusOK}
	given, _, err := c.setup.exchange(ctx, call)
	if err != nil {
		return nil, err
	}
	return readMessage(given), nil
}

// WaitOption is an option of [Client.Wait].
type WaitOption func(*waiting) error

type waiting struct{ timeout time.Duration }

// WithWaitTimeout says how long to wait: 60 seconds unless it is given.
func WithWaitTimeout(timeout time.Duration) WaitOption {
	return func(w *waiting) error {
		w.timeout = timeout
		if timeout < 0 {
			return invalid("a wait's time-out must be at least 0")
		}
		return nil
	}
}

// Wait returns the message when all its recipients have their result, or a [WaitTimeoutError] if that takes too long.
func (c *Client) Wait(ctx context.Context, id string, options ...WaitOption) (*Message, error) {
	how := waiting{waitTimeout}
	for _, option := range options {
		if err := option(&how); err != nil {
			return nil, err
		}
	}
	began := c.setup.clock.Now()
	for poll := 1; ; poll++ {
		message, err := c.Get(ctx, id)
		if err != nil || message.IsFinal() {
			return message, err
		}
		left := how.timeout - c.setup.clock.Now().Sub(began)
		if left < shortest {
			text := fmt.Sprintf("the message %s was still queued after %v", message.ID, how.timeout)
			return nil, &WaitTimeoutError{failure{message: text}, message}
		}
		if err := c.setup.sleep(ctx, min(pollWait(poll, c.setup.random()), left)); err != nil {
			return nil, err
		}
	}
}
