package posthouse

import (
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const (
	pollBase   = 500 * time.Millisecond
	pollFactor = 1.5
	pollCap    = 5 * time.Second
)

// RetryPolicy says how often a call is tried, and how it backs off. Begin with [DefaultRetryPolicy] and change what is
// to be other, or use [NoRetries].
type RetryPolicy struct {
	// AttemptsMax counts the first attempt, too.
	AttemptsMax int
	// The wait after the n-th attempt is Base × Factor^(n−1), no more than Cap, of which a random share of up to half is
	// taken away; or what the service asks for with Retry-After, if that is longer.
	Base   time.Duration
	Factor float64
	Cap    time.Duration
	// A call never takes longer than TotalMax, all its attempts and waits together: if the next wait doesn't fit into
	// what is left, the error is returned at once.
	TotalMax time.Duration
}

// DefaultRetryPolicy is four attempts within half a minute.
func DefaultRetryPolicy() RetryPolicy {
	return RetryPolicy{
		AttemptsMax: 4, Base: 500 * time.Millisecond, Factor: 2, Cap: 8 * time.Second, TotalMax: 30 * time.Second,
	}
}

// NoRetries never tries again.
func NoRetries() RetryPolicy {
	return RetryPolicy{AttemptsMax: 1, TotalMax: math.MaxInt64}
}

func (p RetryPolicy) check() error {
	if p.AttemptsMax < 1 {
		return invalid("AttemptsMax counts the first attempt, too, and must be at least 1; see DefaultRetryPolicy")
	}
	if p.Base < 0 || p.Cap < 0 || p.TotalMax < 0 || !(p.Factor >= 0) || math.IsInf(p.Factor, 1) {
		return invalid("the numbers of a retry policy must be at least 0")
	}
	return nil
}

// wait is how long to wait after the attempt of that number, from 1; random is in [0, 1).
func (p RetryPolicy) wait(attempt int, random float64, retryAfter time.Duration) time.Duration {
	return max(jittered(p.Base, p.Factor, p.Cap, attempt, random), retryAfter)
}

func pollWait(poll int, random float64) time.Duration {
	return jittered(pollBase, pollFactor, pollCap, poll, random)
}

func jittered(base time.Duration, factor float64, most time.Duration, number int, random float64) time.Duration {
	grown := float64(base) * math.Pow(factor, float64(number-1))
	if !(grown < float64(most)) {
		grown = float64(most)
	}
	return time.Duration(grown * (0.5 + random/2))
}

// retryAfter reads the header of that name: seconds or an HTTP date. It is false if it is absent or anything else.
func retryAfter(value string, now time.Time) (time.Duration, bool) {
	text := strings.TrimSpace(value)
	if text != "" && strings.Trim(text, "0123456789") == "" {
		// A number that is too long is infinite, and so is the wait.
		seconds, _ := strconv.ParseFloat(text, 64)
		if seconds >= math.MaxInt64/float64(time.Second) {
			return math.MaxInt64, true
		}
		return time.Duration(seconds * float64(time.Second)), true
	}
	at, err := time.Parse(http.TimeFormat, text)
	// The parser forgives missing zeros and fractions of a second, which no HTTP date has.
	if err != nil || len(text) != len(http.TimeFormat) {
		return 0, false
	}
	return max(0, at.Sub(now)), true
}
