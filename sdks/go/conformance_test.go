package posthouse_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"posthouse.example/posthouse-go"
)

// Every case of sdks/conformance: `python3 ../conformance/stub.py -- go test`.

type object = map[string]any

type conformanceCase struct {
	Run    int
	Kind   string
	Client struct {
		BaseURL         string `json:"base_url"`
		Credential      map[string]string
		Timeout         *float64
		Retry           json.RawMessage
		UserAgentSuffix *string `json:"user_agent_suffix"`
	}
	Call struct {
		Email struct {
			From, Subject, Text, HTML, Template string
			To, CC, BCC, Tags                   oneOrMany
			ReplyTo                             string `json:"reply_to"`
			Variables                           object
			Headers                             map[string]string
			Attachments                         []givenAttachment
		}
		IdempotencyKey *string `json:"idempotency_key"`
		ID             string
		Timeout        *float64
		Body           []byte `json:"body_base64"`
		Header         string
		Secret         string
		Tolerance      *float64
	}
	Random []float64
	Now    int64
	Clock  string
}

type givenAttachment struct {
	Bytes, Stream         []byte
	File                  string
	Filename, ContentType *string
	ContentID             string
}

func (g *givenAttachment) UnmarshalJSON(text []byte) error {
	var given struct {
		Bytes       []byte  `json:"bytes"`
		Stream      []byte  `json:"stream"`
		File        string  `json:"file"`
		Filename    *string `json:"filename"`
		ContentType *string `json:"content_type"`
		ContentID   string  `json:"content_id"`
	}
	err := json.Unmarshal(text, &given)
	*g = givenAttachment(given)
	return err
}

type oneOrMany []string

func (o *oneOrMany) UnmarshalJSON(text []byte) error {
	var one string
	if json.Unmarshal(text, &one) == nil {
		*o = oneOrMany{one}
		return nil
	}
	return json.Unmarshal(text, (*[]string)(o))
}

// fakeTime stands still but for sleeps.
type fakeTime struct {
	at     time.Time
	sleeps []float64
}

func (f *fakeTime) Now() time.Time { return f.at }

func (f *fakeTime) Sleep(_ context.Context, wait time.Duration) error {
	f.sleeps = append(f.sleeps, wait.Seconds())
	f.at = f.at.Add(wait)
	return nil
}

func TestEveryCase(t *testing.T) {
	stub := os.Getenv("POSTHOUSE_STUB")
	if stub == "" {
		t.Skip("run it as `python3 ../conformance/stub.py -- go test`")
	}
	var all struct{ Cases []string }
	ask(t, stub+"/_/cases", nil, &all)
	for _, name := range all.Cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var given conformanceCase
			ask(t, stub+"/_/runs", object{"case": name}, &given)
			var verdict struct {
				Passed   bool
				Problems []string
			}
			ask(t, stub+"/_/reports", run(&given), &verdict)
			if !verdict.Passed {
				t.Error(strings.Join(verdict.Problems, "\n"))
			}
		})
	}
}

func run(given *conformanceCase) object {
	report := object{"run": given.Run}
	fake := &fakeTime{at: time.Unix(given.Now, 0)}
	var debug []object
	result, inspected, err := outcome(given, fake, func(event posthouse.DebugEvent) {
		debug = append(debug, describeEvent(event))
	})
	report["sleeps"], report["debug"], report["inspected"] = fake.sleeps, debug, inspected
	if err != nil {
		report["error"] = describeError(err)
	} else {
		report["result"] = result
	}
	return report
}

func outcome(given *conformanceCase, fake *fakeTime, debug func(posthouse.DebugEvent)) (object, string, error) {
	call := given.Call
	if given.Kind == "webhook" {
		options := []posthouse.WebhookOption{posthouse.WithNow(time.Unix(given.Now, 0))}
		if call.Tolerance != nil {
			options = append(options, posthouse.WithTolerance(seconds(*call.Tolerance)))
		}
		event, err := posthouse.VerifyWebhook(call.Body, call.Header, call.Secret, options...)
		return describeWebhook(event), "", err
	}
	client, err := newClient(given, fake, debug)
	if err != nil {
		return nil, "", err
	}
	inspected := fmt.Sprintf("%v %+v %#v %s %d %v", client, client, client, client, client, *client)
	switch given.Kind {
	case "send":
		var options []posthouse.SendOption
		if call.IdempotencyKey != nil {
			options = append(options, posthouse.WithIdempotencyKey(*call.IdempotencyKey))
		}
		email, err := newEmail(given)
		if err != nil {
			return nil, inspected, err
		}
		sent, err := client.Send(context.Background(), email, options...)
		return describeSent(sent), inspected, err
	case "get":
		message, err := client.Get(context.Background(), call.ID)
		return describeMessage(message), inspected, err
	default:
		var options []posthouse.WaitOption
		if call.Timeout != nil {
			options = append(options, posthouse.WithWaitTimeout(seconds(*call.Timeout)))
		}
		message, err := client.Wait(context.Background(), call.ID, options...)
		return describeMessage(message), inspected, err
	}
}

func newClient(given *conformanceCase, fake *fakeTime, debug func(posthouse.DebugEvent)) (*posthouse.Client, error) {
	client, drawn := given.Client, given.Random
	var once sync.Mutex
	options := []posthouse.Option{posthouse.WithDebug(debug), posthouse.WithRandom(func() float64 {
		once.Lock()
		defer once.Unlock()
		if len(drawn) == 0 {
			return 0
		}
		next := drawn[0]
		drawn = drawn[1:]
		return next
	})}
	if given.Clock == "fake" {
		options = append(options, posthouse.WithClock(fake))
	}
	if client.Timeout != nil {
		options = append(options, posthouse.WithTimeout(seconds(*client.Timeout)))
	}
	if client.UserAgentSuffix != nil {
		options = append(options, posthouse.WithUserAgentSuffix(*client.UserAgentSuffix))
	}
	if client.Retry != nil {
		options = append(options, posthouse.WithRetry(newPolicy(client.Retry)))
	}
	credential := posthouse.APIKey(client.Credential["api_key"])
	if token, is := client.Credential["jwt"]; is {
		credential = posthouse.Token(token)
	}
	if username, is := client.Credential["username"]; is {
		credential = posthouse.Basic(username, client.Credential["password"])
	}
	return posthouse.NewClient(credential, client.BaseURL, options...)
}

func newPolicy(given json.RawMessage) posthouse.RetryPolicy {
	var numbers map[string]float64
	if json.Unmarshal(given, &numbers) != nil {
		return posthouse.NoRetries()
	}
	policy := posthouse.DefaultRetryPolicy()
	for name, number := range numbers {
		switch name {
		case "attempts_max":
			policy.AttemptsMax = int(number)
		case "base_seconds":
			policy.Base = seconds(number)
		case "factor":
			policy.Factor = number
		case "cap_seconds":
			policy.Cap = seconds(number)
		case "total_seconds_max":
			policy.TotalMax = seconds(number)
		}
	}
	return policy
}

func newEmail(given *conformanceCase) (posthouse.Email, error) {
	from := given.Call.Email
	email := posthouse.Email{
		From: from.From, To: from.To, CC: from.CC, BCC: from.BCC, ReplyTo: from.ReplyTo, Subject: from.Subject,
		Text: from.Text, HTML: from.HTML, Template: from.Template, Variables: from.Variables, Headers: from.Headers,
		Tags: from.Tags,
	}
	for _, one := range from.Attachments {
		attachment, err := newAttachment(one)
		if err != nil {
			return email, err
		}
		email.Attachments = append(email.Attachments, attachment)
	}
	return email, nil
}

func newAttachment(given givenAttachment) (attachment posthouse.Attachment, err error) {
	switch {
	case given.File != "":
		attachment, err = posthouse.AttachFile(given.File)
	case given.Stream != nil:
		attachment, err = posthouse.AttachReader(bytes.NewBuffer(given.Stream), *given.Filename)
	default:
		attachment.Content = given.Bytes
	}
	if given.Filename != nil {
		attachment.Filename = *given.Filename
	}
	if given.ContentType != nil {
		attachment.ContentType = *given.ContentType
	}
	attachment.ContentID = given.ContentID
	return attachment, err
}

func describeSent(sent *posthouse.Sent) object {
	if sent == nil {
		return nil
	}
	attachments := []object{}
	for _, one := range sent.Attachments {
		attachments = append(attachments, object{
			"filename": one.Filename, "content_type": one.ContentType, "size": one.Size, "content_id": one.ContentID,
		})
	}
	return object{
		"id": sent.ID, "status": sent.Status, "source": sent.Source, "request_id": sent.RequestID, "from": sent.From,
		"to": sent.To, "cc": sent.CC, "bcc": sent.BCC, "reply_to": sent.ReplyTo, "subject": sent.Subject,
		"billing_status": sent.BillingStatus, "recipient_count": sent.RecipientCount,
		"credits_reserved": sent.CreditsReserved, "headers": sent.Headers, "tags": sent.Tags,
		"attachments": attachments, "replayed": sent.Replayed,
	}
}

func describeMessage(message *posthouse.Message) object {
	if message == nil {
		return nil
	}
	recipients := []object{}
	for _, one := range message.Recipients {
		recipients = append(recipients, object{
			"id": one.ID, "email": one.Email, "status": one.Status, "billing_status": one.BillingStatus,
			"attempt_count": one.AttemptCount, "last_smtp_code": one.LastSMTPCode,
			"last_smtp_response": one.LastSMTPResponse, "delivered_at": moment(one.DeliveredAt),
			"bounced_at": moment(one.BouncedAt),
		})
	}
	return object{
		"id": message.ID, "status": message.Status, "source": message.Source, "from": message.From,
		"subject": message.Subject, "billing_status": message.BillingStatus,
		"recipient_count": message.RecipientCount, "credits_reserved": message.CreditsReserved,
		"created_at": moment(message.CreatedAt), "recipients": recipients, "request_id": message.RequestID,
	}
}

func describeWebhook(event *posthouse.Event) object {
	if event == nil {
		return nil
	}
	return object{
		"id": event.ID, "type": event.Type, "created_at": moment(event.CreatedAt), "data": object{
			"email_id": event.Data.EmailID, "recipient_id": event.Data.RecipientID, "to": event.Data.To,
			"from": event.Data.From, "subject": event.Data.Subject, "smtp_code": event.Data.SMTPCode,
			"smtp_response": event.Data.SMTPResponse, "test": event.Data.Test, "extra": event.Data.Extra,
		},
	}
}

func describeEvent(event posthouse.DebugEvent) object {
	details := object{
		"method": event.Method, "url": event.URL, "status": event.Status, "attempt": event.Attempt,
		"duration": event.Duration.Seconds(), "wait": nil,
	}
	if event.WillRetry {
		details["wait"] = event.Wait.Seconds()
	}
	return details
}

func describeError(err error) object {
	var ours posthouse.Error
	if !errors.As(err, &ours) {
		return object{"type": "unknown", "message": err.Error()}
	}
	details := object{
		"message": fmt.Sprintf("%v", err), "is_retryable": ours.IsRetryable(),
		"is_insufficient_credits": ours.IsInsufficientCredits(),
		"is_idempotency_conflict": ours.IsIdempotencyConflict(),
	}
	if ours.Status() != 0 {
		details["status"] = ours.Status()
	}
	if ours.Code() != "" {
		details["code"] = ours.Code()
	}
	if ours.RequestID() != "" {
		details["request_id"] = ours.RequestID()
	}
	if after, is := ours.RetryAfter(); is {
		details["retry_after"] = after.Seconds()
	}
	switch one := err.(type) {
	case *posthouse.APIError:
		details["type"] = "api"
	case *posthouse.ConnectionError:
		details["type"] = "connection"
	case *posthouse.TimeoutError:
		details["type"] = "timeout"
	case *posthouse.WaitTimeoutError:
		details["type"], details["last"] = "wait_timeout", describeMessage(one.Last)
	case *posthouse.WebhookError:
		details["type"], details["reason"] = "webhook", one.Reason
	case *posthouse.InvalidArgumentError:
		details["type"] = "invalid"
	}
	return details
}

func moment(at time.Time) any {
	if at.IsZero() {
		return nil
	}
	return at.UTC().Format(time.RFC3339Nano)
}

func seconds(number float64) time.Duration { return time.Duration(number * float64(time.Second)) }

func ask(t *testing.T, url string, body, into any) {
	t.Helper()
	method, content := http.MethodGet, []byte(nil)
	if body != nil {
		method = http.MethodPost
		content, _ = json.Marshal(body)
	}
	request, err := http.NewRequest(method, url, bytes.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if err := json.NewDecoder(response.Body).Decode(into); err != nil {
		t.Fatal(err)
	}
}

func basic(username, password string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(username+":"+password))
}
