"""The outcome of a delivery attempt, and the recipient's next state.

An attempt ends at a stage of an SMTP session, or before there was a session. `judge` gives the verdict on a single
attempt; `recipient_update` gives the recipient's state, considering how often and how long delivery was tried.

Two principles. A 5xx reply about *this message* (from MAIL on) is final; a 5xx about the *server* or about us
(greeting, EHLO, STARTTLS, AUTH, "authenticate first") is not, since the next host may differ and servers are repaired
within hours. And after the final dot a missing reply proves nothing: the message is retried, and the attempt is
recorded as ambiguous.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, assert_never

from posthouse.mail.reply import Reply
from posthouse.rules import retry
from posthouse.rules.message import RecipientStatus


class Stage(StrEnum):
    """How far the session got: the last command that was sent and not yet answered."""

    CONNECT = "connect"
    GREETING = "greeting"
    EHLO = "ehlo"
    STARTTLS = "starttls"
    # Only with a relay.
    AUTH = "auth"
    MAIL = "mail"
    RCPT = "rcpt"
    # DATA lasts until the body is written; DOT begins when the final dot may have been sent.
    DATA = "data"
    DOT = "dot"


class LookupFailure(StrEnum):
    """Why DNS gave no address. All but NO_ANSWER are certain."""

    NULL_MX = "null_mx"
    NO_SUCH_NAME = "no_such_name"
    NO_ADDRESS = "no_address"
    NO_ANSWER = "no_answer"


@dataclass(frozen=True, slots=True)
class Replied:
    """The server's reply that ended the attempt."""

    stage: Stage
    reply: Reply


@dataclass(frozen=True, slots=True)
class NoReply:
    """The session ended without a reply: connection refused, timed out, closed, no TLS, no SMTP."""

    stage: Stage
    reason: str


@dataclass(frozen=True, slots=True)
class Unresolved:
    lookup: LookupFailure
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Forbidden:
    """We never connect to any of the destination's addresses: loopback, private, our own."""


@dataclass(frozen=True, slots=True)
class Suppressed:
    """The address is suppressed for the account, or unsubscribed from the list; no delivery was tried."""

    unsubscribed_list: str | None = None


@dataclass(frozen=True, slots=True)
class GivenUp:
    """We stopped trying: too many attempts, too long, or held for too long.

    `is_released`: the recipient had no chance to get it, and the credit is returned.
    """

    reason: str
    is_released: bool = False


@dataclass(frozen=True, slots=True)
class StillBlocked:
    """A server refused our address, and the message was held for as long as it may be: the first reply counts."""

    code: int
    text: str


AttemptResult = Replied | NoReply | Unresolved | Forbidden | Suppressed | GivenUp | StillBlocked


class OutcomeKind(StrEnum):
    DELIVERED = "delivered"
    BOUNCED = "bounced"
    DEFERRED = "deferred"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class DeliveryVerdict:
    """`code` is the server's, None without a reply; `text` is its reply, or our description of what happened.

    `next_mx_host`: try the destination's next host, if any, before this verdict counts.
    `ambiguous`: the message may have arrived anyway. `suppress`: the address gets no more mail. `is_released`: the
    credit is returned although the message failed.
    """

    kind: OutcomeKind
    code: int | None
    text: str
    next_mx_host: bool = False
    ambiguous: bool = False
    suppress: bool = False
    is_released: bool = False


@dataclass(frozen=True, slots=True)
class RecipientUpdate:
    """The recipient's state after the attempt; `next_at` is set only if it is deferred."""

    status: RecipientStatus
    next_at: datetime | None = None


# Before MAIL, no reply is about this message.
_BEFORE_MAIL: Final = frozenset({Stage.CONNECT, Stage.GREETING, Stage.EHLO, Stage.STARTTLS, Stage.AUTH})
AUTHENTICATION_REQUIRED: Final = 530
# RFC 5321, 4.5.3.1.10: older servers use it for "too many recipients", and some for a full mailbox.
OVER_STORAGE: Final = 552
# RFC 3463: the address is wrong, unknown, or moved. Not 5.1.7 and 5.1.8, which are about our sender, nor 5.7.x,
# which is about policy.
SUPPRESSING: Final = frozenset({"5.1.1", "5.1.2", "5.1.3", "5.1.6", "5.1.10"})

_CERTAIN_FAILURES: Final = {
    LookupFailure.NULL_MX: "the domain does not accept mail (null MX)",
    LookupFailure.NO_SUCH_NAME: "the domain does not exist",
    LookupFailure.NO_ADDRESS: "the domain has no mail server and no address",
}


def judge(result: AttemptResult) -> DeliveryVerdict:
    match result:
        case Replied(stage, reply):
            return _judge_reply(stage, reply)
        case NoReply(stage, reason):
            return DeliveryVerdict(
                OutcomeKind.DEFERRED,
                None,
                f"{reason} ({_while(stage)})",
                next_mx_host=stage in _BEFORE_MAIL,
                ambiguous=stage is Stage.DOT,
            )
        case Unresolved(LookupFailure.NO_ANSWER, reason):
            return DeliveryVerdict(OutcomeKind.DEFERRED, None, f"DNS gave no usable answer: {reason}")
        case Unresolved(lookup):
            return DeliveryVerdict(OutcomeKind.BOUNCED, None, _CERTAIN_FAILURES[lookup])
        case Forbidden():
            return DeliveryVerdict(OutcomeKind.BOUNCED, None, "the domain's mail servers have no public address")
        case Suppressed(None):
            return DeliveryVerdict(
                OutcomeKind.BOUNCED,
                None,
                "the address is suppressed: earlier mail to it bounced or was complained about, "
                "or the account blocks it",
            )
        case Suppressed(unsubscribed_list):
            return DeliveryVerdict(
                OutcomeKind.BOUNCED, None, f"the address is unsubscribed from the list {unsubscribed_list!r}"
            )
        case GivenUp(reason, is_released):
            return DeliveryVerdict(OutcomeKind.FAILED, None, reason, is_released=is_released)
        case StillBlocked(code, text):
            return DeliveryVerdict(OutcomeKind.BOUNCED, code, text)
        case _:
            assert_never(result)


def is_taken(result: AttemptResult) -> bool:
    """Whether the server took the message."""
    return isinstance(result, Replied) and judge(result).kind is OutcomeKind.DELIVERED


def recipient_update(
    verdict: DeliveryVerdict,
    *,
    attempts: int,
    accepted_at: datetime,
    now: datetime,
    random: float,
    held: timedelta = timedelta(0),
    schedule: retry.Schedule = retry.DELIVERY,
) -> RecipientUpdate:
    """The recipient's next state. `attempts` includes the judged attempt, and attempts lost in a crash."""
    match verdict.kind:
        case OutcomeKind.DELIVERED:
            return RecipientUpdate(RecipientStatus.DELIVERED)
        case OutcomeKind.BOUNCED:
            return RecipientUpdate(RecipientStatus.BOUNCED)
        case OutcomeKind.DEFERRED:
            next_at = retry.next_at(
                schedule, attempts=attempts, started_at=accepted_at, now=now, random=random, held=held
            )
            if next_at is None:
                return RecipientUpdate(RecipientStatus.FAILED)
            return RecipientUpdate(RecipientStatus.DEFERRED, next_at)
        case OutcomeKind.FAILED:
            return RecipientUpdate(RecipientStatus.FAILED)
        case _:
            assert_never(verdict.kind)


def _judge_reply(stage: Stage, reply: Reply) -> DeliveryVerdict:
    code = reply.code
    if stage is Stage.DOT and 200 <= code < 300:
        return DeliveryVerdict(OutcomeKind.DELIVERED, code, reply.text)
    if stage in _BEFORE_MAIL or (stage is Stage.MAIL and code == AUTHENTICATION_REQUIRED):
        return DeliveryVerdict(OutcomeKind.DEFERRED, code, reply.text, next_mx_host=True)
    if 500 <= code < 600 and not (stage is Stage.RCPT and code == OVER_STORAGE):
        suppress = stage is Stage.RCPT and reply.enhanced in SUPPRESSING
        return DeliveryVerdict(OutcomeKind.BOUNCED, code, reply.text, suppress=suppress)
    # A reply with an invalid code counts as no reply; after the dot that is ambiguous.
    is_refusal = 400 <= code < 600
    return DeliveryVerdict(OutcomeKind.DEFERRED, code, reply.text, ambiguous=stage is Stage.DOT and not is_refusal)


def _while(stage: Stage) -> str:
    match stage:
        case Stage.CONNECT:
            return "while connecting"
        case Stage.GREETING:
            return "before the greeting"
        case Stage.EHLO | Stage.STARTTLS | Stage.AUTH | Stage.MAIL | Stage.RCPT | Stage.DATA:
            return f"during {stage.upper()}"
        case Stage.DOT:
            return "after the message was sent; it may have arrived"
        case _:
            assert_never(stage)
