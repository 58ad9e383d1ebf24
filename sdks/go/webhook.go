package posthouse

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strconv"
	"strings"
	"time"
)

const (
	// SignatureHeader is the header that a webhook's signature is in.
	SignatureHeader = "Service-Signature"

	tolerance       = 300 * time.Second
	timeDigitsMax   = 12
	signatureDigits = 2 * sha256.Size
)

// EventData says which recipient of which message an event is about. Absent values are zero.
type EventData struct {
	EmailID      string
	RecipientID  string
	To           string
	From         string
	Subject      string
	SMTPCode     int
	SMTPResponse string
	Test         bool
	// Extra has the fields that this version has no name for.
	Extra map[string]json.RawMessage
}

// Event is email.delivered, email.bounced, email.failed or webhook.test, as its Type says. The same ID may come more
// than once.
type Event struct {
	ID        string
	Type      string
	CreatedAt time.Time
	Data      EventData
}

// WebhookOption is an option of [VerifyWebhook].
type WebhookOption func(*verifying) error

type verifying struct {
	tolerance time.Duration
	now       time.Time
}

// WithTolerance says for how long before and after the time it was signed a request is believed: 300 seconds unless it
// is given.
func WithTolerance(tolerance time.Duration) WebhookOption {
	return func(v *verifying) error {
		v.tolerance = tolerance
		if tolerance < 0 {
			return invalid("the tolerance must not be below 0")
		}
		return nil
	}
}

// WithNow replaces the time, for tests.
func WithNow(now time.Time) WebhookOption {
	return func(v *verifying) error {
		v.now = now
		return nil
	}
}

// VerifyWebhook returns the event if the request is the service's own, and else a [WebhookError].
//
// The body is the request's as it came, before anything parsed it; header is the value of [SignatureHeader], and secret
// the webhook's, with its whsec_.
func VerifyWebhook(body []byte, header, secret string, options ...WebhookOption) (*Event, error) {
	if secret == "" {
		return nil, invalid("the webhook's secret is empty; anybody could sign with it")
	}
	how := verifying{tolerance: tolerance, now: time.Now()}
	for _, option := range options {
		if err := option(&how); err != nil {
			return nil, err
		}
	}
	signedAt, signatures, isWellFormed := parsedHeader(header)
	if !isWellFormed {
		return nil, notGenuine(MalformedHeader, "the header "+SignatureHeader+" is not of the form t=…,v1=…")
	}
	if !isSigned(body, signedAt, signatures, secret) {
		return nil, notGenuine(WrongSignature, "the signature is not that of this body and secret")
	}
	seconds, _ := strconv.ParseInt(signedAt, 10, 64)
	if how.now.Sub(time.Unix(seconds, 0)).Abs() > how.tolerance {
		text := "it was signed more than " + how.tolerance.String() + " before or after now"
		return nil, notGenuine(OutsideTolerance, text)
	}
	return readEvent(body)
}

func isSigned(body []byte, signedAt string, signatures []string, secret string) bool {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(signedAt + "."))
	mac.Write(body)
	expected := []byte(hex.EncodeToString(mac.Sum(nil)))
	found := false
	for _, one := range signatures {
		found = hmac.Equal(expected, []byte(one)) || found
	}
	return found
}

func parsedHeader(header string) (signedAt string, signatures []string, isWellFormed bool) {
	times := 0
	for _, field := range strings.Split(header, ",") {
		name, value, isPair := strings.Cut(field, "=")
		if !isPair || name == "" || strings.ContainsAny(field, " \t\n\v\f\r") {
			return "", nil, false
		}
		switch name {
		case "t":
			times++
			signedAt = value
		case "v1":
			if len(value) != signatureDigits || strings.Trim(value, "0123456789abcdef") != "" {
				return "", nil, false
			}
			signatures = append(signatures, value)
		}
	}
	isTime := signedAt != "" && len(signedAt) <= timeDigitsMax && strings.Trim(signedAt, "0123456789") == ""
	return signedAt, signatures, times == 1 && isTime && len(signatures) > 0
}

func readEvent(body []byte) (*Event, error) {
	given := readObject(body)
	if given == nil {
		return nil, notGenuine(MalformedBody, "the body is no JSON object")
	}
	data := as[fields](given["data"])
	event := &Event{ID: given.text("id"), Type: given.text("type"), CreatedAt: given.moment("created_at")}
	if event.ID == "" || event.Type == "" || event.CreatedAt.IsZero() || data == nil {
		return nil, notGenuine(MalformedBody, "the body is no event")
	}
	event.Data = EventData{
		EmailID:      data.text("email_id"),
		RecipientID:  data.text("recipient_id"),
		To:           data.text("to"),
		From:         data.text("from"),
		Subject:      data.text("subject"),
		SMTPCode:     data.number("smtp_code"),
		SMTPResponse: data.text("smtp_response"),
		Test:         as[bool](data["test"]),
	}
	named := []string{"email_id", "recipient_id", "to", "from", "subject", "smtp_code", "smtp_response", "test"}
	for _, name := range named {
		delete(data, name)
	}
	event.Data.Extra = data
	return event, nil
}

func notGenuine(reason WebhookReason, text string) error {
	return &WebhookError{failure{message: "not a genuine webhook: " + text}, reason}
}
