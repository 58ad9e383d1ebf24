package posthouse

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Error is what all errors of this package are; errors.As finds it, or one of the types that implement it:
// [APIError], [ConnectionError], [TimeoutError], [WaitTimeoutError], [WebhookError] and [InvalidArgumentError].
type Error interface {
	error
	// Message is the text alone, without what Error adds to it.
	Message() string
	// Status is the HTTP status that the service answered with, 0 if it did not answer.
	Status() int
	// Code is the service's word for what is wrong, such as insufficient_credits; empty if there is none.
	Code() string
	// RequestID names the request; quote it when you ask for help.
	RequestID() string
	// RetryAfter is how long the service asked to wait, if it did.
	RetryAfter() (wait time.Duration, ok bool)
	// IsRetryable says whether the same call may succeed later. The client has retried it already, as its policy says.
	IsRetryable() bool
	IsInsufficientCredits() bool
	// IsIdempotencyConflict says whether the idempotency key was used before, for another email.
	IsIdempotencyConflict() bool
}

type failure struct {
	message       string
	status        int
	code          string
	requestID     string
	retryAfter    time.Duration
	hasRetryAfter bool
	cause         error
}

func (f *failure) Message() string   { return f.message }
func (f *failure) Status() int       { return f.status }
func (f *failure) Code() string      { return f.code }
func (f *failure) RequestID() string { return f.requestID }
func (f *failure) Unwrap() error     { return f.cause }

func (f *failure) RetryAfter() (time.Duration, bool) { return f.retryAfter, f.hasRetryAfter }

func (f *failure) IsInsufficientCredits() bool { return f.code == "insufficient_credits" }
func (f *failure) IsIdempotencyConflict() bool { return f.code == "idempotency_conflict" }

func (f *failure) IsRetryable() bool {
	return f.status == http.StatusTooManyRequests || f.status == http.StatusServiceUnavailable ||
		f.code == "idempotency_in_progress"
}

func (f *failure) Error() string {
	var details []string
	if f.status != 0 {
		details = append(details, strconv.Itoa(f.status))
	}
	for _, one := range []string{f.code, f.requestID} {
		if one != "" {
			details = append(details, one)
		}
	}
	if len(details) == 0 {
		return "posthouse: " + f.message
	}
	return fmt.Sprintf("posthouse: %s (%s)", f.message, strings.Join(details, ", "))
}

// APIError means that the service answered, but not with what was asked for.
type APIError struct{ failure }

// ConnectionError means that the service could not be reached, or that the connection ended before its answer was
// whole.
type ConnectionError struct{ failure }

func (*ConnectionError) IsRetryable() bool { return true }

// TimeoutError means that the service did not answer in time.
type TimeoutError struct{ failure }

func (*TimeoutError) IsRetryable() bool { return true }

// Timeout is true, as the errors of package net have it.
func (*TimeoutError) Timeout() bool { return true }

// WaitTimeoutError means that the message was still queued when the time was up.
type WaitTimeoutError struct {
	failure
	// Last is how the message was last seen.
	Last *Message
}

// Timeout is true, as the errors of package net have it.
func (*WaitTimeoutError) Timeout() bool { return true }

// WebhookReason says why a webhook is not to be believed.
type WebhookReason string

const (
	MalformedHeader  WebhookReason = "malformed_header"
	WrongSignature   WebhookReason = "wrong_signature"
	OutsideTolerance WebhookReason = "outside_tolerance"
	MalformedBody    WebhookReason = "malformed_body"
)

// WebhookError means that a request is not to be believed: answer it with 400 and do nothing else.
type WebhookError struct {
	failure
	Reason WebhookReason
}

// InvalidArgumentError means that an argument or option can't be used; nothing was sent.
type InvalidArgumentError struct{ failure }

func invalid(format string, arguments ...any) error {
	return &InvalidArgumentError{failure{message: fmt.Sprintf(format, arguments...)}}
}
