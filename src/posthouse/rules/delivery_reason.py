"""The reason of a delivery result, from what is stored of it: outcome, SMTP code and text.

Servers use codes differently and words much alike, so words are compared first, then the enhanced status code
(RFC 3463), then the code. A reply is untrusted: only its beginning is read, in time in proportion to it, it can select
a reason, and is used for nothing else. Without a code the text is our own, and its beginning names the reason.

Bounces, failures and deferrals are counted by mailbox provider, status code and reason, bounded for each day.
"""

import re
from collections.abc import Iterator
from enum import StrEnum
from functools import lru_cache
from typing import Final

from posthouse.mail.reply import enhanced_of

# The important words are at the beginning of a reply; the rest is links and identifiers.
REPLY_CHARACTERS_READ: Final = 400

# Replaces an address.
ADDRESS: Final = "[address]"

_WORD: Final = re.compile(r"\S+")

Phrase = tuple[str, ...]

# Tables of words, compared from the first line to the last.
# The beginnings of our own texts, of results without a server's code.
_OWN_TEXTS: Final = """
suppressed: the address is suppressed
unsubscribed: the address is unsubscribed
no_mail_accepted: the domain does not accept mail | the domain has no mail server
no_mail_accepted: the domain's mail servers have no public address
unknown_domain: the domain does not exist
resolver: dns gave no usable answer: no name server is configured
resolver: dns gave no usable answer: the name servers can't be reached
dns_failed: dns gave no usable answer
account_suspended: it was held for
expired: it was tried | it could not be delivered in the time
not_stored: the message is no longer stored
cancelled: it was cancelled
simulated: the simulator
interrupted: the service was stopped | the service failed | withdrawn before the final dot | the session was cut off
interrupted: the session was ended | the connection was closed
timed_out: no connection in time | no answer in time | not done within the time | no server could be tried in time
timed_out: no connection: connection timed out
tls_failed: the tls handshake failed | the server's certificate | the server does not offer starttls
tls_failed: the server continued in cleartext
unreachable: no connection | the server closed the connection | the connection broke | the server ended the session
protocol_error: the server
"""
# Words of servers' replies; "…" stands for any words between.
_REPLIES: Final = """
simulated: the simulator refused | the simulator asks
not_served: too many hops | hop count | mail loop
greylisted: greylist | graylist | grey-list | gray-list | greylisting | postgrey
listed_link: url … listed | url … block | uribl | surbl | link … blacklist | dbl.spamhaus | blocked url
listed_link: spamhaus dbl | domain in … body … listed | message contains a url | bad url
reverse_dns: reverse dns | ptr record | no ptr | rdns | reverse hostname | reverse host name | reverse lookup
reverse_dns: helo command rejected | helo/ehlo | iprev | does not resolve to | fcrdns | reverse mapping
reverse_dns: client host rejected: cannot find your | dns ptr
authentication_failed: dmarc | unauthenticated email | spf fail | spf check | spf validation | spf: fail
authentication_failed: spf hardfail | openspf | does not pass authentication | dkim fail | isn't authenticated
authentication_failed: is not authenticated | not authorized to send | sender id | required authentication level
authentication_failed: not allowed to send | not permitted to send | spoof | spf record | authentication checks
authentication_failed: dkim | unauthenticated sender | spf policy
blocklisted: spamhaus | spamcop | barracudacentral | barracuda reputation | sorbs | rbl. | dnsbl | blocked using
blocklisted: block list | blocklist | blacklist | listed by | listed in | listed at | s3140 | s3150
blocklisted: banned sending ip | ip address … has been blocked | sending ip … blocked | ip address … reputation
blocklisted: reputation … ip address | ip reputation | your ip … blocked | client host … blocked | block the ip
blocklisted: csi-cloudmark | senderscore | tss0 | [ts0 | [bl2 | [bl0 | ipcheck | hvu:b1
blocklisted: client host rejected | proofpoint … blocked | ip address blocked | ip blocked | banned sender
blocklisted: host … is blocked | black listed | black-listed | barracudanetworks.com/reputation | csi.cloudmark
rate_limited: unusual rate | rate limit | ratelimit | too many | throttl | too fast | exceeded the rate
rate_limited: exceeded … limit on | connection limit | connections from your | concurrent connections
rate_limited: maximum number of | exceeded … connection | rp-001 | rp-002 | sending limit | slow down
rate_limited: maximum concurrent | message rate | submission rate | over the rate | rate overlimit | too much mail
rate_limited: excessive | as(4801 | as(4802
mailbox_busy: receiving mail at a rate | receiving mail too quickly | recipient … exceeded … rate
malware: virus | malware | infected | phish | trojan
attachment_refused: potential security issue | attachment | file type | banned extension | executable
too_large: message size exceeds | message too large | message too big | size limit | too large
too_large: exceeds fixed maximum | exceeded … message size | maximum message size | message file too big
too_large: message length exceeds | exceeds the maximum size | message exceeds maximum
mailbox_full: over quota | overquota | out of storage | mailbox full | mailbox is full | quota exceeded
mailbox_full: mailbox … full | exceeded … quota | exceeded storage | insufficient mailbox | quota … full
mailbox_full: storage quota | exceeded … mailbox size | inbox is full | over its quota | disk quota
sender_reputation: reputation of the sending domain | domain … reputation | sender … reputation | user complaints
sender_reputation: sender … blocked | sending domain … blocked | poor reputation | low reputation | bad reputation
sender_reputation: blocked sender
sender_address: sender address rejected | sender rejected | sender domain | domain of sender | sender verify
sender_address: invalid sender | sender address … not | bad sender | mail from … domain | sender denied
sender_address: sender unknown | unable to verify sender | return path … not
malformed: rfc 5322 | rfc 2822 | rfc5322 | rfc2822 | rfc 822 | bare lf | bare <lf> | bare linefeed | messageid
malformed: missing … header | duplicate … header | multiple from | from header | header syntax | line too long
malformed: lines longer than | malformed | illegal 8 | content encoding | mime error
spam: spam | unsolicited | bulk mail | content rejected | content … blocked | junk | suspicious | due to content
spam: [hm | [cs | message refused by … filter | high probability | rejected by content | cloudmark
spam: message filtered | content filter | content restrictions | content denied
mailbox_disabled: disabled | inactive | account … suspended | mailbox … suspended | deactivated | account … locked
mailbox_disabled: mailbox … locked | not active | account … closed | has been closed | no longer in use
mailbox_disabled: account is frozen | mailbox frozen | expired account
recipient_refuses: authrequired | senderrestricted | notauthorized | restricted to … senders
recipient_refuses: not authorized to … recipient | only accept | restrictedrecipient | prohibited by administrator
recipient_refuses: refused by recipient | recipient has blocked | does not accept mail from | not accept … from you
recipient_refuses: not permitted by recipient
not_served: relay | not a local domain | we do not serve | not hosted here | domain not … handled | not our customer
not_served: domain isn't in my list | tenantattr | domain not found in … host | no such domain here
not_served: not accept mail for this domain
unknown_address: user unknown | unknown user | unknown recipient | recipient unknown | unknown address
unknown_address: does not exist | doesn't exist | no such user | no such recipient | no such mailbox
unknown_address: no such person | no mailbox | mailbox not found | mailbox unavailable | user not found
unknown_address: recipnotfound | recipient not found | invalid recipient | invalid mailbox
unknown_address: doesn't have a … account | address unknown | unrouteable address | unroutable | not our user
unknown_address: no account | account not found | not a valid mailbox | address rejected
unknown_address: recipient address rejected | unknown local | undeliverable address | no user here
unknown_address: no valid recipients | recipient invalid | recipient rejected | not known here | invalid address
unknown_address: address is invalid | unknown mailbox | invalid user | user invalid | user doesn | nosuchuser
unknown_address: unknown virtual | unable to find recipient | account unavailable
unknown_domain: domain not found | host unknown | unknown host | bad destination | domain does not exist
tls_failed: starttls | tls required | requires tls | encryption required | secure connection
provider_busy: system resources | service unavailable | service not available | server busy | try again | temporar
provider_busy: internal error | internal server error | local error | queue … full | backend
provider_busy: insufficient … storage | disk … full | overloaded | too busy | lookup failed | time-out | timed out
provider_busy: timeout | unable to … connect | maintenance | try later | shutting down
"""
# These mean the same everywhere: they come before words, since a reply may contain words that it doesn't mean.
_CERTAIN: Final = frozenset(
    {f"5.{detail}" for detail in ("1.1", "2.2", "3.4", "4.6", "4.14", "7.23", "7.25", "7.26", "7.29", "7.64", "7.124")}
    | {"4.2.2", "4.7.25", "4.7.26", "4.7.29", "5.7.133", "5.7.509", "5.7.515"}
)
# Microsoft's codes for addresses that it blocks or slows down.
_BLOCKED_ADDRESSES: Final = range(600, 700)


class DeliveryReason(StrEnum):
    """Stable names: they are stored and shown."""

    DELIVERED = "delivered"
    # The recipient.
    UNKNOWN_ADDRESS = "unknown_address"
    UNKNOWN_DOMAIN = "unknown_domain"
    NO_MAIL_ACCEPTED = "no_mail_accepted"
    MAILBOX_DISABLED = "mailbox_disabled"
    MAILBOX_FULL = "mailbox_full"
    MAILBOX_BUSY = "mailbox_busy"
    RECIPIENT_REFUSES = "recipient_refuses"
    SUPPRESSED = "suppressed"
    UNSUBSCRIBED = "unsubscribed"
    # The sender.
    AUTHENTICATION_FAILED = "authentication_failed"
    SENDER_ADDRESS = "sender_address"
    SENDER_REPUTATION = "sender_reputation"
    ACCOUNT_SUSPENDED = "account_suspended"
    # The content.
    SPAM = "spam"
    LISTED_LINK = "listed_link"
    MALWARE = "malware"
    ATTACHMENT_REFUSED = "attachment_refused"
    TOO_LARGE = "too_large"
    MALFORMED = "malformed"
    # The recipient's mailbox provider.
    GREYLISTED = "greylisted"
    RATE_LIMITED = "rate_limited"
    PROVIDER_BUSY = "provider_busy"
    UNREACHABLE = "unreachable"
    TIMED_OUT = "timed_out"
    DNS_FAILED = "dns_failed"
    TLS_FAILED = "tls_failed"
    PROTOCOL_ERROR = "protocol_error"
    NOT_SERVED = "not_served"
    POLICY = "policy"
    REFUSED = "refused"
    DEFERRED = "deferred"
    AMBIGUOUS = "ambiguous"
    # This service.
    BLOCKLISTED = "blocklisted"
    REVERSE_DNS = "reverse_dns"
    WAITING = "waiting"
    SENDING = "sending"
    POSTPONED = "postponed"
    WORKER_LOST = "worker_lost"
    EXPIRED = "expired"
    NOT_STORED = "not_stored"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"
    LOST = "lost"
    RESOLVER = "resolver"
    SIMULATED = "simulated"
    # Counted together, where there were too many different ones.
    OTHER = "other"


def _rows(table: str) -> Iterator[tuple[DeliveryReason, str]]:
    for line in table.strip().split("\n"):
        reason, _, words = line.partition(": ")
        for phrase in words.split(" | "):
            yield DeliveryReason(reason), phrase


_OWN_BEGINNINGS: Final = tuple(_rows(_OWN_TEXTS))


def phrase_of(words: str) -> Phrase:
    """A phrase of a table; "…" stands for any words between."""
    return tuple(words.split(" … "))


_PHRASES: Final = tuple([(reason, phrase_of(words)) for reason, words in _rows(_REPLIES)])

R = DeliveryReason

# By the enhanced code without its class; Microsoft uses its own numbers from 5.7.100 up.
_ENHANCED: Final[dict[str, DeliveryReason]] = {
    "1.0": R.UNKNOWN_ADDRESS,
    "1.1": R.UNKNOWN_ADDRESS,
    "1.2": R.UNKNOWN_DOMAIN,
    "1.3": R.UNKNOWN_ADDRESS,
    "1.4": R.UNKNOWN_ADDRESS,
    "1.6": R.UNKNOWN_ADDRESS,
    "1.7": R.SENDER_ADDRESS,
    "1.8": R.SENDER_ADDRESS,
    "1.10": R.NO_MAIL_ACCEPTED,
    "2.1": R.MAILBOX_DISABLED,
    "2.2": R.MAILBOX_FULL,
    "2.3": R.TOO_LARGE,
    "2.4": R.RECIPIENT_REFUSES,
    "3.1": R.PROVIDER_BUSY,
    "3.2": R.PROVIDER_BUSY,
    "3.4": R.TOO_LARGE,
    "4.0": R.PROVIDER_BUSY,
    "4.1": R.PROVIDER_BUSY,
    "4.2": R.PROVIDER_BUSY,
    "4.3": R.PROVIDER_BUSY,
    "4.4": R.NOT_SERVED,
    "4.5": R.PROVIDER_BUSY,
    "4.6": R.NOT_SERVED,
    "4.14": R.NOT_SERVED,
    "5.0": R.PROTOCOL_ERROR,
    "5.1": R.PROTOCOL_ERROR,
    "5.2": R.PROTOCOL_ERROR,
    "5.3": R.RATE_LIMITED,
    "5.4": R.PROTOCOL_ERROR,
    "6.0": R.MALFORMED,
    "6.1": R.MALFORMED,
    "6.2": R.MALFORMED,
    "6.3": R.MALFORMED,
    "6.6": R.MALFORMED,
    "6.7": R.MALFORMED,
    "7.2": R.RECIPIENT_REFUSES,
    "7.10": R.TLS_FAILED,
    "7.13": R.MAILBOX_DISABLED,
    "7.17": R.UNKNOWN_ADDRESS,
    "7.20": R.AUTHENTICATION_FAILED,
    "7.21": R.AUTHENTICATION_FAILED,
    "7.22": R.AUTHENTICATION_FAILED,
    "7.23": R.AUTHENTICATION_FAILED,
    "7.24": R.AUTHENTICATION_FAILED,
    "7.25": R.REVERSE_DNS,
    "7.26": R.AUTHENTICATION_FAILED,
    "7.27": R.SENDER_ADDRESS,
    "7.28": R.RATE_LIMITED,
    "7.29": R.TLS_FAILED,
    "7.30": R.AUTHENTICATION_FAILED,
    "7.64": R.NOT_SERVED,
    "7.124": R.RECIPIENT_REFUSES,
    "7.129": R.RECIPIENT_REFUSES,
    "7.133": R.RECIPIENT_REFUSES,
    "7.134": R.RECIPIENT_REFUSES,
    "7.135": R.RECIPIENT_REFUSES,
    "7.136": R.RECIPIENT_REFUSES,
    "7.509": R.AUTHENTICATION_FAILED,
    "7.511": R.BLOCKLISTED,
    "7.515": R.AUTHENTICATION_FAILED,
}

# By the code only.
_CODES: Final[dict[int, DeliveryReason]] = {
    421: R.PROVIDER_BUSY,
    431: R.PROVIDER_BUSY,
    432: R.PROVIDER_BUSY,
    447: R.PROVIDER_BUSY,
    452: R.PROVIDER_BUSY,
    523: R.TOO_LARGE,
    530: R.POLICY,
    550: R.REFUSED,
    552: R.MAILBOX_FULL,
    553: R.SENDER_ADDRESS,
    556: R.NO_MAIL_ACCEPTED,
}


def has_words(text: str, phrase: Phrase) -> bool:
    place = 0
    for part in phrase:
        place = text.find(part, place)
        if place < 0:
            return False
        place += len(part)
    return True


def normal_text(response: str) -> str:
    """The reply in lower case on one line, without addresses and the status codes that each line of a reply repeats."""
    lines = [_without_status(line) for line in response[:REPLY_CHARACTERS_READ].lower().split("\n")]
    return " ".join([word for line in lines for word in line.split() if "@" not in word])


def without_addresses(response: str) -> str:
    """The reply for records about a server instead of a message: they must not name recipients."""
    return _WORD.sub(lambda word: ADDRESS if "@" in word[0] or "%40" in word[0] else word[0], response)


@lru_cache(maxsize=512)
def reason_of(outcome: str | None, code: int | None, response: str | None) -> DeliveryReason:
    """The reason of a result: `outcome` is an attempt's, or the status of a final recipient."""
    if outcome == "delivered":
        return R.DELIVERED
    if outcome == "postponed":
        return R.POSTPONED
    if code is None:
        return _own_reason(normal_text(response or ""))
    return named_reason(code, response or "") or reason_by_code(code, response or "")


def named_reason(code: int, response: str) -> DeliveryReason | None:
    """The reason that a reply names, by a status that means the same everywhere or by its words."""
    enhanced = enhanced_of(code, response)
    if enhanced in _CERTAIN:
        return _ENHANCED[enhanced[2:]]
    text = normal_text(response)
    return next((reason for reason, phrase in _PHRASES if has_words(text, phrase)), None)


def reason_by_code(code: int, response: str) -> DeliveryReason:
    """The likely reason of a reply whose words say nothing."""
    enhanced = enhanced_of(code, response)
    if enhanced is not None:
        found = _ENHANCED.get(enhanced[2:])
        if found is not None:
            return found
        subject, _, detail = enhanced[2:].partition(".")
        if subject == "7":
            if int(detail) in _BLOCKED_ADDRESSES:
                return R.BLOCKLISTED
            return R.POLICY if code >= 500 else R.RATE_LIMITED
        if subject == "3" and code < 500:
            return R.PROVIDER_BUSY
    return _CODES.get(code, R.REFUSED if code >= 500 else R.DEFERRED)


def _without_status(line: str) -> str:
    first, _, rest = line.partition(" ")
    return rest if first.count(".") == 2 and first.replace(".", "").isdigit() else line


def _own_reason(text: str) -> DeliveryReason:
    if text.endswith("it may have arrived)"):
        return R.AMBIGUOUS
    for reason, beginning in _OWN_BEGINNINGS:
        if text.startswith(beginning):
            return reason
    return R.DEFERRED
