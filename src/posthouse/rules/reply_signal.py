"""Reply signals: what a server's reply says about us, the sender, so that lanes can react to it.

A `DeliveryReason` tells a customer why a message was not accepted. A reply signal tells our lanes what the server
thinks of our address, network or domain: to send more slowly, with fewer connections, or not at all. Where the reason
says enough, the reply signal follows from it; the table below contains what providers say more precisely. A reply is
untrusted: it selects a reply signal, it can ask for a bounded wait, and nothing else of it is used.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import zip_longest
from typing import Final, NamedTuple

from posthouse.mail.reply import Reply
from posthouse.rules.delivery_reason import (
    DeliveryReason,
    Phrase,
    has_words,
    named_reason,
    normal_text,
    phrase_of,
    reason_by_code,
)
from posthouse.rules.outcome import Stage

R = DeliveryReason

# The longest wait, even if a server asks us to wait longer.
WAIT_SECONDS_MAX: Final = 3_600


class ReplySignalKind(StrEnum):
    """Stable names: they are stored and shown."""

    # A lower rate of mail.
    SLOW = "slow"
    # Fewer connections at a time.
    CONNECTIONS = "connections"
    # Fewer messages on one connection.
    PER_CONNECTION = "per_connection"
    # The same message from the same address, some minutes later.
    GREYLISTED = "greylisted"
    # No mail, until someone lifts it or it ends.
    BLOCK = "block"
    AUTHENTICATION = "authentication"
    # This message: its content, form or size.
    CONTENT = "content"
    # The recipient's mailbox, or what its owner chose.
    MAILBOX = "mailbox"
    # The server itself is busy or faulty.
    THEIRS = "theirs"


class Scope(StrEnum):
    """What a slow-down or a block is about. A `domain` is the From domain, whatever the server calls it."""

    ADDRESS = "address"
    NETWORK = "network"
    DOMAIN = "domain"
    DKIM_DOMAIN = "dkim_domain"
    SPF_DOMAIN = "spf_domain"
    RECIPIENT = "recipient"


class Check(StrEnum):
    """The part of our authentication that is missing or wrong."""

    PTR = "ptr"
    SPF = "spf"
    DKIM = "dkim"
    DMARC = "dmarc"
    TLS = "tls"


@dataclass(frozen=True, slots=True)
class ReplySignal:
    """`scopes` of a slow or a block, `checks` of an authentication; `wait_seconds` if the server names a time."""

    kind: ReplySignalKind
    scopes: frozenset[Scope] = frozenset()
    checks: frozenset[Check] = frozenset()
    wait_seconds: int | None = None

    @property
    def name(self) -> str:
        """Such as `slow:address+domain`, `authentication:spf` or `greylisted`; `reply_signal_named` reads it."""
        about = "+".join(sorted([*self.scopes, *self.checks]))
        return f"{self.kind}:{about}" if about else str(self.kind)


# Compared from the first line to the last: lane ("*": any), stage, code, enhanced status (".7.28": of any class),
# reply signal, and words of which one must occur ("…": any words between; "-": none needed).
_REPLIES: Final = """
google    *    *   .7.28   slow:network             netblock
google    *    *   .7.28   slow:dkim_domain         dkim domain
google    *    *   .7.28   slow:spf_domain          spf domain
google    *    *   .7.28   slow:domain              url domain
google    *    *   .7.28   content                  same message-id
google    *    5xx .7.28   block:address            -
google    *    4xx .7.28   slow:address             your ip address
*         *    4xx .7.28   slow:address+domain      -
google    *    *   .7.23   authentication:ptr       -
google    *    *   .7.24   authentication:spf       -
google    *    *   .7.27   authentication:spf       -
google    *    *   .7.30   authentication:dkim      -
google    *    *   .7.31   authentication:dmarc     -
google    *    *   .7.32   authentication:dmarc     -
google    *    *   .7.40   authentication:dmarc     -
google    *    4xx *       slow:address             low reputation of the sending ip
google    *    4xx *       slow:domain              low reputation of the sending domain
google    *    5xx *       block:address            not authorized to send email directly
google    *    421 4.7.0   mailbox                  not in whitelist
google    *    421 4.7.0   slow:address             try again later, closing connection
google    *    5xx *       mailbox                  policy that prohibited | email policy

microsoft *    *   *       per_connection           messages per connection | rp-002
microsoft *    *   *       connections              number of connections | max concurrent connections | rp-003
microsoft *    *   *       connections              concurrent connections limit
microsoft *    4xx 4.7.500 slow:address             server busy
microsoft *    4xx *       slow:address             temporarily rate limited | rp-001
microsoft *    4xx *       slow:address             access denied, please try again later
microsoft *    5xx *       block:network            s3140
microsoft *    5xx *       block:address            s3150 | traffic not accepted from this ip
microsoft *    5xx *       block:address            dy-001 | dy-002 | ou-001 | ou-002
microsoft *    5xx *       content                  sc-001 | sc-002 | sc-003 | sc-004
microsoft *    5xx .7.508  slow:network             -
microsoft *    5xx .7.513  mailbox                  -
microsoft *    5xx .7.507  mailbox                  -
microsoft *    5xx .7.510  theirs                   -
microsoft *    5xx .7.506  authentication:ptr       -
microsoft *    *   .2.121  slow:recipient           -
microsoft *    *   .2.122  slow:recipient           -
microsoft *    *   .3.2    slow:recipient           recipient thread limit
*         *    *   .7.515  authentication:dkim+dmarc+spf -

yahoo     *    *   *       block:address            permanently deferred | [tss09] | [tss11]
yahoo     *    4xx *       greylisted               [gl01]
yahoo     *    4xx *       slow:address             [ts0 | [tss | [ipts
yahoo     *    5xx *       content                  [ph01] | message not accepted for policy reasons
yahoo     *    5xx *       content                  message not allowed
yahoo-japan *  4xx *       slow:address             [ts0 | [tss | [ipts
yahoo-japan *  5xx *       slow:address             vs98-ip0

apple     *    4xx *       slow:address             was deferred | [hcm

orange    *    *   *       connections              ofr_104 | ofr004_104 | trop de connexions
orange    *    4xx *       slow:address             service refuse | ofr_105 | ofr004_105 | ofr_999
orange    *    5xx *       block:address            service refuse | blocked for spamming
orange    *    5xx *       content                  ofr_506 | mail rejete

gmx       *    *   *       content                  policy violation | policy restriction
telekom   *    5xx *       block:address            a problem occurred | dialup/transient
comcast   *    *   *       block:address            bl000
comcast   *    4xx *       slow:address             rl000
mimecast  *    451 *       greylisted               internal resources are temporarily unavailable
mimecast  *    5xx *       block:address            csi.mimecast.org
mimecast  *    5xx *       mailbox                  envelope blocked | manually blocked senders
yandex    *    451 *       greylisted               service is currently unavailable
tencent   *    *   *       slow:domain              sender frequency limited | domain frequency limited
tencent   *    *   *       slow:address             frequency limited
netease   *    *   *       connections              hl:icc
netease   *    *   *       slow:address             hl:itc | hl:rep | rp:orq | rp:rcl | rp:trc | rp:qrc
netease   *    *   *       authentication:spf       mi:spf
netease   *    *   *       content                  dt:spm | dt:sum

*         rcpt 450 4.3.2   greylisted               service currently unavailable
*         *    4xx *       slow:address             errors from your ip
*         *    *   *       per_connection           per connection | per session | on this connection
*         *    *   *       per_connection           this session | messages in one connection | in one session
*         *    *   *       per_connection           allowable connection time | too many errors | bad smtp command limit
*         *    *   *       slow:address             connection rate | connections per minute | connections per hour
*         *    *   *       connections              too many connections | too many concurrent | too many open
*         *    *   *       connections              too many simultaneous | simultaneous connections | too many sessions
*         *    *   *       connections              too many smtp | concurrent connections | connection limit
*         *    *   *       connections              concurrency limit | number of connections | concurrent sessions
*         *    *   *       connections              number of concurrent | connections from your | new tls sessions
*         *    *   *       slow:recipient           recipient has exceeded … rate | ratelimit exceeded for mailbox
*         *    *   *       slow:address             recipients received this hour | too many recipients from
*         *    *   *       slow:address             too many invalid | too many unknown
*         *    *   *       theirs                   too many recipients
*         *    4xx *       slow:address             too many spams | user complaints
*         *    *   *       block:network            network … is blocked | netblock … block | subnet … block
*         *    *   *       block:address            mta's poor reputation | mail server's reputation
"""

# The reply signals that follow from the reason only.
_BY_REASON: Final[dict[DeliveryReason, str]] = {
    R.UNKNOWN_ADDRESS: "mailbox",
    R.UNKNOWN_DOMAIN: "mailbox",
    R.NO_MAIL_ACCEPTED: "mailbox",
    R.MAILBOX_DISABLED: "mailbox",
    R.MAILBOX_FULL: "mailbox",
    R.MAILBOX_BUSY: "slow:recipient",
    R.RECIPIENT_REFUSES: "mailbox",
    R.AUTHENTICATION_FAILED: "authentication",
    R.SENDER_REPUTATION: "block:domain",
    R.SPAM: "content",
    R.LISTED_LINK: "content",
    R.MALWARE: "content",
    R.ATTACHMENT_REFUSED: "content",
    R.TOO_LARGE: "content",
    R.MALFORMED: "content",
    R.GREYLISTED: "greylisted",
    R.RATE_LIMITED: "slow:address",
    R.PROVIDER_BUSY: "theirs",
    R.PROTOCOL_ERROR: "theirs",
    R.NOT_SERVED: "theirs",
    R.TLS_FAILED: "authentication:tls",
    R.BLOCKLISTED: "block:address",
    R.REVERSE_DNS: "authentication:ptr",
}
_CHECK_WORDS: Final = {
    "spf": Check.SPF,
    "sender policy framework": Check.SPF,
    "dkim": Check.DKIM,
    "dmarc": Check.DMARC,
}
_CHECKS_UNNAMED: Final = frozenset({Check.SPF, Check.DKIM})
_AFTER_MAIL: Final = frozenset({Stage.RCPT, Stage.DATA, Stage.DOT})
# In addition to 5.7.900 to 5.7.999, which Microsoft uses for rules of its customers.
_STATUSES_OF_CUSTOMERS: Final = frozenset({None, "5.0.0", "5.7.0", "5.7.1"})


class _Row(NamedTuple):
    lane: str
    stage: str
    code: str
    status: str
    reply_signal: ReplySignal
    phrases: tuple[Phrase, ...]

    def matches(self, lane: str, stage: Stage, reply: Reply, text: str) -> bool:
        return (
            self.lane in ("*", lane)
            and self.stage in ("*", stage)
            and self.code in ("*", str(reply.code), f"{reply.code // 100}xx")
            and (self.status == "*" or _has_status(reply.enhanced, self.status))
            and (not self.phrases or any(has_words(text, phrase) for phrase in self.phrases))
        )


def reply_signal_named(name: str) -> ReplySignal:
    """The reply signal of this name, without a wait."""
    kind, _, about = name.partition(":")
    parts = about.split("+") if about else []
    if kind == ReplySignalKind.AUTHENTICATION:
        return ReplySignal(ReplySignalKind.AUTHENTICATION, checks=frozenset(map(Check, parts)))
    return ReplySignal(ReplySignalKind(kind), scopes=frozenset(map(Scope, parts)))


def _rows() -> Iterator[_Row]:
    for line in _REPLIES.strip().split("\n"):
        if line:
            lane, stage, code, status, name, words = line.split(None, 5)
            phrases = () if words == "-" else tuple([phrase_of(phrase) for phrase in words.split(" | ")])
            yield _Row(lane, stage, code, status, reply_signal_named(name), phrases)


_ROWS: Final = tuple(_rows())
_REPLY_SIGNALS_BY_REASON: Final = {reason: reply_signal_named(name) for reason, name in _BY_REASON.items()}


def reply_signal_of(lane: str, stage: Stage, reply: Reply) -> ReplySignal | None:
    """What a refusal says about us, if anything; None for every other reply."""
    if not 400 <= reply.code < 600:
        return None
    text = normal_text(reply.text)
    row = next((row for row in _ROWS if row.matches(lane, stage, reply, text)), None)
    reply_signal = row.reply_signal if row is not None else _by_reason(reply, text)
    if reply_signal is None or reply.code >= 500:
        return reply_signal
    return replace(reply_signal, wait_seconds=_wait_seconds(text))


def may_be_customers(stage: Stage, reply: Reply) -> bool:
    """Whether a provider's customer may have worded it: a customer's rule refuses a message permanently, after MAIL."""
    if stage not in _AFTER_MAIL or reply.code < 500:
        return False
    status = reply.enhanced
    return status in _STATUSES_OF_CUSTOMERS or (status is not None and len(status) == 7 and status.startswith("5.7.9"))


def _by_reason(reply: Reply, text: str) -> ReplySignal | None:
    named = named_reason(reply.code, reply.text)
    reason = named or reason_by_code(reply.code, reply.text)
    # A plain 4.7.x may be about anything; a 421 ends the connection, and is about us.
    if named is None and reason is R.RATE_LIMITED and reply.code != 421:
        return None
    if reason is R.GREYLISTED and reply.code >= 500:
        return None
    if reason is R.AUTHENTICATION_FAILED:
        checks = frozenset({check for words, check in _CHECK_WORDS.items() if words in text})
        return ReplySignal(ReplySignalKind.AUTHENTICATION, checks=checks or _CHECKS_UNNAMED)
    return _REPLY_SIGNALS_BY_REASON.get(reason)


def _has_status(enhanced: str | None, wanted: str) -> bool:
    return enhanced is not None and (enhanced[1:] == wanted if wanted.startswith(".") else enhanced == wanted)


# "Try again in 5 minutes": one of these words, any of those, a number, a unit.
_WAIT_WORDS: Final = frozenset(
    {
        "again",
        "back",
        "deferred",
        "delayed",
        "greylisted",
        "greylisting",
        "later",
        "reconnect",
        "resend",
        "retry",
        "wait",
    }
)
_WAIT_FILLERS: Final = frozenset(
    {"about", "after", "another", "at", "for", "in", "later", "least", "please", "the", "within"}
)
_UNIT_SECONDS: Final = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3_600),
}
_WAIT_DIGITS_MAX: Final = 6


def _wait_seconds(text: str) -> int | None:
    """The time after which the server wants us to try again, at most an hour."""
    words = [word.strip("()[]<>,.;:!\"'").removesuffix("(s") for word in text.split()]
    is_asked = False
    for word, unit in zip_longest(words, words[1:], fillvalue=""):
        if word in _WAIT_WORDS:
            is_asked = True
        elif is_asked and word not in _WAIT_FILLERS:
            seconds = _seconds(word, unit)
            if seconds is not None:
                return min(seconds, WAIT_SECONDS_MAX)
            is_asked = False
    return None


def _seconds(word: str, unit: str) -> int | None:
    """The seconds of "300 seconds", "5min" or "00:05:00"."""
    clock = word.split(":")
    if len(clock) == 3 and all(map(_is_number, clock)):
        hours, minutes, seconds = map(int, clock)
        return hours * 3_600 + minutes * 60 + seconds
    number = word.rstrip("abcdefghijklmnopqrstuvwxyz")
    factor = _UNIT_SECONDS.get(word[len(number) :] or unit)
    return int(number) * factor if factor is not None and _is_number(number) else None


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdecimal() and len(word) <= _WAIT_DIGITS_MAX
