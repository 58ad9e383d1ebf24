// Package posthouse sends email through a Posthouse, reports its status, and verifies webhooks.
//
// A [Client] is made with [NewClient], is safe for concurrent use, and tries again what may succeed later. Every error
// of the package is an [Error]; only an ended context returns the context's own error. Nothing but the standard
// library is used.
package posthouse

// Version is the version of the library, as in its User-Agent.
const Version = "1.0.0-rc.1"
