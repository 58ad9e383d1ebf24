package posthouse

import (
	"encoding/json"
	"time"
	"unicode/utf8"
)

// fields is a JSON object, read field by field: a later version of the service may return more, and
// a value of an unexpected type counts as absent. Its names are compared exactly, which a struct's would not be.
type fields map[string]json.RawMessage

// readObject is nil if that is no JSON object in UTF-8.
func readObject(text []byte) fields {
	// The standard library replaces what isn't UTF-8; here it is an error.
	if !utf8.Valid(text) {
		return nil
	}
	return as[fields](text)
}

func (f fields) text(name string) string { return as[string](f[name]) }
func (f fields) number(name string) int  { return as[int](f[name]) }

func (f fields) moment(name string) time.Time {
	at, err := time.Parse(time.RFC3339, f.text(name))
	if err != nil {
		return time.Time{}
	}
	return at
}

func (f fields) texts(name string) []string {
	var texts []string
	for _, one := range as[[]json.RawMessage](f[name]) {
		if text := as[*string](one); text != nil {
			texts = append(texts, *text)
		}
	}
	return texts
}

func (f fields) objects(name string) []fields {
	var objects []fields
	for _, one := range as[[]json.RawMessage](f[name]) {
		if object := as[fields](one); object != nil {
			objects = append(objects, object)
		}
	}
	return objects
}

// as is the value, or the type's zero if the JSON is something else.
func as[T any](text json.RawMessage) T {
	var value, zero T
	if json.Unmarshal(text, &value) != nil {
		return zero
	}
	return value
}
