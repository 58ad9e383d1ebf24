package posthouse

import (
	"net/url"
	"strconv"
	"strings"
)

// What can't be sent as it was given is refused here: above all whatever could end a header and begin another.

const keyCharactersMax = 255

func isControl(r rune) bool   { return r < 0x20 || r == 0x7f }
func isPrintable(r rune) bool { return 0x20 <= r && r <= 0x7e }
func isVisible(r rune) bool   { return 0x20 < r && r <= 0x7e }

func all(text string, is func(rune) bool) bool {
	return strings.IndexFunc(text, func(r rune) bool { return !is(r) }) < 0
}

func hasControl(text string) bool { return strings.IndexFunc(text, isControl) >= 0 }

// checkedBaseURL is the base URL without slashes at its end. The error doesn't repeat the address, which may have a
// password in it.
func checkedBaseURL(given string) (string, error) {
	parts, err := url.Parse(given)
	if err != nil || !isAddress(parts) || parts.User != nil || strings.ContainsAny(given, "?#") ||
		!all(given, isVisible) {
		return "", invalid("the base URL must be http://host or https://host, with a path or not, " +
			"and without user name, password, query and fragment")
	}
	return strings.TrimRight(given, "/"), nil
}

// checkedProxy is the address of a proxy, whose user name and password may be in it.
func checkedProxy(given string) (*url.URL, error) {
	parts, err := url.Parse(given)
	if err != nil || !isAddress(parts) {
		return nil, invalid("a proxy must be http://host:port or https://host:port, with a user name and password or not")
	}
	return parts, nil
}

func isAddress(parts *url.URL) bool {
	if parts.Scheme != "http" && parts.Scheme != "https" || parts.Hostname() == "" {
		return false
	}
	port, err := strconv.Atoi(parts.Port())
	return parts.Port() == "" || err == nil && 1 <= port && port <= 65535
}

func checkToken(token string) error {
	if token == "" || !all(token, isVisible) {
		return invalid("an API key or token is printable ASCII without spaces, and not empty")
	}
	return nil
}

func checkUserName(name string) error {
	if name == "" || strings.Contains(name, ":") || hasControl(name) {
		return invalid("a user name is not empty and has neither colons nor control characters")
	}
	return nil
}

func checkPassword(password string) error {
	if password == "" || hasControl(password) {
		return invalid("a password is not empty and has no control characters")
	}
	return nil
}

func checkIdempotencyKey(key string) error {
	if key == "" || len(key) > keyCharactersMax || !all(key, isPrintable) || key != strings.TrimSpace(key) {
		return invalid("an idempotency key is 1 to %d printable ASCII characters, without spaces at its ends",
			keyCharactersMax)
	}
	return nil
}

func checkFilename(name string) error {
	if name == "" || strings.ContainsAny(name, `/\`) || hasControl(name) {
		return invalid("%q is no file name: it must be one without a path", name)
	}
	return nil
}

// escapedID is the id of a message as it stands in a path.
func escapedID(id string) (string, error) {
	if id == "" || id == "." || id == ".." || hasControl(id) {
		return "", invalid("this is no message id; use that of a send's result")
	}
	const hexadecimal = "0123456789ABCDEF"
	var escaped strings.Builder
	for _, one := range []byte(id) {
		if isUnreserved(one) {
			escaped.WriteByte(one)
		} else {
			escaped.Write([]byte{'%', hexadecimal[one>>4], hexadecimal[one&15]})
		}
	}
	return escaped.String(), nil
}

func isUnreserved(one byte) bool {
	return 'a' <= one && one <= 'z' || 'A' <= one && one <= 'Z' || '0' <= one && one <= '9' ||
		strings.IndexByte("-._~", one) >= 0
}
