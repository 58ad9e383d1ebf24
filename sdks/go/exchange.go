package posthouse

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

const (
	// An answer that is longer is not read to its end: no real one comes near.
	answerBytesMax = 1 << 20
	// Less than this is no time at all.
	shortest = time.Millisecond
)

// DebugEvent is one attempt. Status is 0 if there was no answer; Wait is until the next attempt, if WillRetry.
type DebugEvent struct {
	Method    string
	URL       string
	Status    int
	Attempt   int
	Duration  time.Duration
	WillRetry bool
	Wait      time.Duration
}

// call is what all attempts have in common.
type call struct {
	method  string
	url     string
	headers http.Header
	body    []byte
	success int
}

type answer struct {
	status  int
	headers http.Header
	body    []byte
}

// exchange returns the first answer that is a success, after as many attempts as the policy has.
func (s *setup) exchange(ctx context.Context, asked call) (fields, http.Header, error) {
	start := s.clock.Now()
	for attempt := 1; ; attempt++ {
		began := s.clock.Now()
		timeout := max(shortest, min(s.timeout, s.retry.TotalMax-began.Sub(start)))
		came, failed := s.attempt(ctx, asked, timeout)
		ended := s.clock.Now()
		var given fields
		if failed == nil {
			given, failed = judged(came, asked.success, ended)
		}
		event := DebugEvent{Method: asked.method, URL: asked.url, Status: came.status, Attempt: attempt}
		event.Duration = ended.Sub(began)
		event.Wait, event.WillRetry = s.wait(failed, attempt, s.retry.TotalMax-ended.Sub(start))
		if s.debug != nil {
			s.debug(event)
		}
		if failed == nil {
			return given, came.headers, nil
		}
		if !event.WillRetry {
			return nil, nil, failed
		}
		if err := s.sleep(ctx, event.Wait); err != nil {
			return nil, nil, err
		}
	}
}

// wait is how long to wait before the next attempt, if there is one.
func (s *setup) wait(failed error, attempt int, left time.Duration) (time.Duration, bool) {
	var ours Error
	if !errors.As(failed, &ours) || !ours.IsRetryable() || attempt >= s.retry.AttemptsMax {
		return 0, false
	}
	after, _ := ours.RetryAfter()
	wait := s.retry.wait(attempt, s.random(), after)
	if wait >= left {
		return 0, false
	}
	return wait, true
}

func (s *setup) sleep(ctx context.Context, wait time.Duration) error {
	if err := s.clock.Sleep(ctx, wait); err != nil {
		return givenUp(err)
	}
	return nil
}

// attempt returns an answer, whatever its status, or the error that there was none.
func (s *setup) attempt(ctx context.Context, asked call, timeout time.Duration) (answer, error) {
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	came, err := s.roundTrip(limited, asked)
	var timed net.Error
	switch {
	case err == nil:
		return came, nil
	case ctx.Err() != nil:
		return answer{}, givenUp(ctx.Err())
	case limited.Err() != nil, errors.As(err, &timed) && timed.Timeout():
		text := fmt.Sprintf("there was no whole answer within %v", timeout)
		return answer{}, &TimeoutError{failure{message: text, cause: err}}
	default:
		text := fmt.Sprintf("the service could not be reached, or its answer was not whole: %v", err)
		return answer{}, &ConnectionError{failure{message: text, cause: err}}
	}
}

// roundTrip asks the transport itself: an http.Client would follow redirects and keep cookies.
func (s *setup) roundTrip(ctx context.Context, asked call) (answer, error) {
	var body io.Reader
	if asked.body != nil {
		body = bytes.NewReader(asked.body)
	}
	request, err := http.NewRequestWithContext(ctx, asked.method, asked.url, body)
	if err != nil {
		return answer{}, err
	}
	for name, values := range asked.headers {
		request.Header[name] = values
	}
	request.Header.Set("Authorization", s.authorization())
	request.Header.Set("Accept", "application/json")
	request.Header.Set("User-Agent", s.userAgent)
	response, err := s.transport.RoundTrip(request)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	content, err := io.ReadAll(io.LimitReader(response.Body, answerBytesMax+1))
	if err != nil {
		return answer{}, err
	}
	return answer{response.StatusCode, response.Header, content}, nil
}

// judged is the answer's JSON if it is the success that was asked for, and else the error that it stands for.
func judged(came answer, success int, now time.Time) (fields, error) {
	var given fields
	if len(came.body) <= answerBytesMax {
		given = readObject(came.body)
	}
	if came.status == success && given.text("id") != "" && given.text("status") != "" {
		return given, nil
	}
	if came.status < http.StatusBadRequest {
		given = nil
	}
	failed := failure{
		message:   given.text("error"),
		status:    came.status,
		code:      given.text("code"),
		requestID: given.text("request_id"),
	}
	if failed.message == "" {
		failed.message = whatCame(came, success)
	}
	if failed.requestID == "" {
		failed.requestID = came.headers.Get("X-Request-ID")
	}
	failed.retryAfter, failed.hasRetryAfter = retryAfter(came.headers.Get("Retry-After"), now)
	return nil, &APIError{failed}
}

func whatCame(came answer, success int) string {
	switch {
	case len(came.body) > answerBytesMax:
		return fmt.Sprintf("the answer is longer than %d bytes", answerBytesMax)
	case 300 <= came.status && came.status < 400:
		return "the service answered with a redirect, which is not followed: check the base URL"
	case came.status == success:
		return "the answer is not the JSON that was expected: check the base URL"
	default:
		return fmt.Sprintf("the service answered with status %d", came.status)
	}
}

func givenUp(err error) error { return fmt.Errorf("posthouse: the call was given up: %w", err) }

func isTrue(value string) bool { return strings.EqualFold(value, "true") }

// newKey is a UUID of version 4.
func newKey() string {
	var random [16]byte
	if _, err := rand.Read(random[:]); err != nil {
		// Without chance two emails could get the same key, and the second would never be sent.
		panic(err)
	}
	random[6] = random[6]&0x0f | 0x40
	random[8] = random[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", random[:4], random[4:6], random[6:8], random[8:10], random[10:])
}
