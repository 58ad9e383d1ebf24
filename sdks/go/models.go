package posthouse

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"time"
)

// Email is an email to send. Addresses are bare (ada@example.com) or with a name (Ada <ada@example.com>).
//
// One of Text, HTML, Template and Attachments must be given, and a Subject unless the template has one.
type Email struct {
	From     string
	To       []string
	CC       []string
	BCC      []string
	ReplyTo  string
	Subject  string
	Text     string
	HTML     string
	Template string
	// Variables of the template: strings, numbers, booleans and nil.
	Variables   map[string]any
	Headers     map[string]string
	Tags        []string
	Attachments []Attachment
	// SendAt is the time before which it is not sent; zero means now.
	SendAt time.Time
	// Metadata is for your own programs, and never in the mail.
	Metadata map[string]string
	// Content may be "forget": no one can read the mail once it is accepted, and it is deleted after its result.
	Content string
}

// Attachment is a file of an email; see also [AttachFile] and [AttachReader].
type Attachment struct {
	Filename string
	Content  []byte
	// ContentType is guessed from the file name's extension, here or by the service, if it is empty.
	ContentType string
	// ContentID makes it an inline image, which the HTML shows as cid:<ContentID>.
	ContentID string
}

// AttachFile reads the file now. It is attached under its own name, unless another is set afterwards.
func AttachFile(path string) (Attachment, error) {
	content, err := os.ReadFile(path)
	return Attachment{Filename: filepath.Base(path), Content: content}, err
}

// AttachReader reads to the end now.
func AttachReader(reader io.Reader, filename string) (Attachment, error) {
	content, err := io.ReadAll(reader)
	return Attachment{Filename: filename, Content: content}, err
}

// writtenEmail is the body of a send, without what is empty.
type writtenEmail struct {
	From        string              `json:"from,omitempty"`
	To          []string            `json:"to,omitempty"`
	CC          []string            `json:"cc,omitempty"`
	BCC         []string            `json:"bcc,omitempty"`
	ReplyTo     string              `json:"reply_to,omitempty"`
	Subject     string              `json:"subject,omitempty"`
	Text        string              `json:"text,omitempty"`
	HTML        string              `json:"html,omitempty"`
	Template    string              `json:"template,omitempty"`
	Variables   map[string]any      `json:"variables,omitempty"`
	Headers     map[string]string   `json:"headers,omitempty"`
	Tags        []string            `json:"tags,omitempty"`
	Attachments []writtenAttachment `json:"attachments,omitempty"`
	SendAt      string              `json:"send_at,omitempty"`
	Metadata    map[string]string   `json:"metadata,omitempty"`
	Content     string              `json:"content,omitempty"`
}

type writtenAttachment struct {
	Filename string `json:"filename"`
	// It stays even if it is empty: an empty file is a file.
	Content     []byte `json:"content"`
	ContentType string `json:"content_type,omitempty"`
	ContentID   string `json:"content_id,omitempty"`
}

func (e Email) written() ([]byte, error) {
	whole := writtenEmail{
		From: e.From, To: e.To, CC: e.CC, BCC: e.BCC, ReplyTo: e.ReplyTo, Subject: e.Subject, Text: e.Text, HTML: e.HTML,
		Template: e.Template, Variables: e.Variables, Headers: e.Headers, Tags: e.Tags, Metadata: e.Metadata,
		Content: e.Content,
	}
	if !e.SendAt.IsZero() {
		whole.SendAt = e.SendAt.UTC().Format(time.RFC3339Nano)
	}
	for _, one := range e.Attachments {
		if err := checkFilename(one.Filename); err != nil {
			return nil, err
		}
		contentType := one.ContentType
		if contentType == "" {
			contentType = mediaType(one.Filename)
		}
		// No content is nil in Go, but null is not what JSON has for it.
		content := append([]byte{}, one.Content...)
		whole.Attachments = append(whole.Attachments, writtenAttachment{one.Filename, content, contentType, one.ContentID})
	}
	var body bytes.Buffer
	encoder := json.NewEncoder(&body)
	// HTML would become several times as long, and the service counts bytes.
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(whole); err != nil {
		return nil, &InvalidArgumentError{failure{message: "the email has a variable that JSON can't encode", cause: err}}
	}
	return bytes.TrimRight(body.Bytes(), "\n"), nil
}

// SentAttachment is what the service says of an attachment it took; Size is in bytes.
type SentAttachment struct {
	Filename    string
	ContentType string
	Size        int
	ContentID   string
}

// Sent is an accepted email: queued, not yet delivered.
type Sent struct {
	ID              string
	Status          string
	Source          string
	RequestID       string
	From            string
	To              []string
	CC              []string
	BCC             []string
	ReplyTo         string
	Subject         string
	BillingStatus   string
	RecipientCount  int
	CreditsReserved int
	Headers         map[string]string
	Tags            []string
	Attachments     []SentAttachment
	// Replayed says that the idempotency key was used before, and that this is the email of then.
	Replayed bool
}

func readSent(given fields, replayed bool) *Sent {
	sent := &Sent{
		ID:              given.text("id"),
		Status:          given.text("status"),
		Source:          given.text("source"),
		RequestID:       given.text("request_id"),
		From:            given.text("from"),
		To:              given.texts("to"),
		CC:              given.texts("cc"),
		BCC:             given.texts("bcc"),
		ReplyTo:         given.text("reply_to"),
		Subject:         given.text("subject"),
		BillingStatus:   given.text("billing_status"),
		RecipientCount:  given.number("recipient_count"),
		CreditsReserved: given.number("credits_reserved"),
		Headers:         as[map[string]string](given["headers"]),
		Tags:            given.texts("tags"),
		Replayed:        replayed,
	}
	for _, one := range given.objects("attachments") {
		sent.Attachments = append(sent.Attachments, SentAttachment{
			Filename:    one.text("filename"),
			ContentType: one.text("content_type"),
			Size:        one.number("size"),
			ContentID:   one.text("content_id"),
		})
	}
	return sent
}

// Recipient is an address of a message: its Status is queued, deferred, delivered, bounced or
// failed. Absent values are zero.
type Recipient struct {
	ID               string
	Email            string
	Status           string
	BillingStatus    string
	AttemptCount     int
	LastSMTPCode     int
	LastSMTPResponse string
	DeliveredAt      time.Time
	BouncedAt        time.Time
}

// Message is an accepted message: its Status is queued, delivered, partial or failed.
type Message struct {
	ID              string
	Status          string
	Source          string
	From            string
	Subject         string
	BillingStatus   string
	RecipientCount  int
	CreditsReserved int
	CreatedAt       time.Time
	Recipients      []Recipient
	RequestID       string
}

// IsFinal says whether all recipients have their result.
func (m *Message) IsFinal() bool { return m.Status != "queued" }

func readMessage(given fields) *Message {
	message := &Message{
		ID:              given.text("id"),
		Status:          given.text("status"),
		Source:          given.text("source"),
		From:            given.text("from"),
		Subject:         given.text("subject"),
		BillingStatus:   given.text("billing_status"),
		RecipientCount:  given.number("recipient_count"),
		CreditsReserved: given.number("credits_reserved"),
		CreatedAt:       given.moment("created_at"),
		RequestID:       given.text("request_id"),
	}
	for _, one := range given.objects("recipients") {
		message.Recipients = append(message.Recipients, Recipient{
			ID:               one.text("id"),
			Email:            one.text("email"),
			Status:           one.text("status"),
			BillingStatus:    one.text("billing_status"),
			AttemptCount:     one.number("attempt_count"),
			LastSMTPCode:     one.number("last_smtp_code"),
			LastSMTPResponse: one.text("last_smtp_response"),
			DeliveredAt:      one.moment("delivered_at"),
			BouncedAt:        one.moment("bounced_at"),
		})
	}
	return message
}
