// Package posthouse sends email through a Posthouse, tells what became of it, and verifies webhooks.
//
// A [Client] is made with [NewClient], is safe for concurrent use, and tries again what may succeed later. Every error
// of the package is an [Error]; only a context that ended is told by the context's own error. Nothing but the standard
// library is used.
package posthouse

// Version is the version of the library, as its User-Agent tells it.
const Version = "0.1.0"
