package posthouse

import (
	"encoding/base64"
	"fmt"
)

// Credential is who calls: [APIKey], [Token] or [Basic]. However it is printed, the secret isn't: it is behind a
// function, of which even the package fmt shows no more than an address.
type Credential struct{ authorized func() (string, error) }

// APIKey is a key such as ph_live_…, with the read scope if it is to read.
func APIKey(key string) Credential { return Token(key) }

// Token is a token from a login.
func Token(token string) Credential {
	return Credential{func() (string, error) { return "Bearer " + token, checkToken(token) }}
}

// Basic is the user name and password of an SMTP credential.
func Basic(username, password string) Credential {
	return Credential{func() (string, error) {
		if err := checkUserName(username); err != nil {
			return "", err
		}
		pair := base64.StdEncoding.EncodeToString([]byte(username + ":" + password))
		return "Basic " + pair, checkPassword(password)
	}}
}

// Format prints the type alone.
func (Credential) Format(state fmt.State, _ rune) { fmt.Fprint(state, "posthouse.Credential") }

func (c Credential) authorization() (string, error) {
	if c.authorized == nil {
		return "", invalid("there is no credential: use APIKey, Token or Basic")
	}
	return c.authorized()
}
