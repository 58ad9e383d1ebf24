"""What happened to a recipient or an attempt, in words: a headline, whose side the cause is on, and what to do.

For operators, also what a reply says about this service as the sender. Every text is our own: a server's reply selects
an explanation and is never part of it.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from posthouse.rules.delivery_reason import DeliveryReason, normal_text, reason_of
from posthouse.rules.reply_signal import Check, ReplySignal, ReplySignalKind, Scope
from posthouse.rules.restore import RESTORE
from posthouse.rules.wait_reason import WaitReason

R = DeliveryReason

_AUTOMATIC: Final = "Nothing to do: it continues automatically."
_OPERATOR: Final = "Ask the operator of this service to look into it; give the message's id."

# Reasons that end a message which was never tried, or whose headline already says that it was given up.
_NEED_NO_PREFIX: Final = frozenset({R.EXPIRED, R.NOT_STORED, R.CANCELLED, R.ACCOUNT_SUSPENDED})
_GIVEN_UP: Final = "Gave up after repeated tries: "
_TRIED_AGAIN: Final = "Nothing for now: it is tried again automatically. If that doesn't help: "

# What a recipient that is not final waits for; None where the last reply explains it.
_WAITS: Final[dict[WaitReason, DeliveryReason | None]] = {
    WaitReason.SENDING: R.SENDING,
    WaitReason.WORKER_LOST: R.WORKER_LOST,
    WaitReason.ACCOUNT_SUSPENDED: R.ACCOUNT_SUSPENDED,
    WaitReason.PAUSED: R.POSTPONED,
    WaitReason.SCHEDULED: R.WAITING,
    WaitReason.SUPPRESSED: R.SUPPRESSED,
    WaitReason.DUE: R.WAITING,
    WaitReason.ON_ITS_WAY: R.WAITING,
    WaitReason.GREYLISTED: None,
    WaitReason.DEFERRED: None,
    WaitReason.BLOCKED: R.BLOCKLISTED,
    WaitReason.LANE_FULL: R.POSTPONED,
    WaitReason.LOST: R.LOST,
}

# What an operator can do about a waiting recipient; "{account}", "{message}" and "{lane}" are filled in.
_STEPS: Final[dict[WaitReason, str]] = {
    WaitReason.SENDING: "Nothing to do: it is being sent.",
    WaitReason.WORKER_LOST: "Nothing to do: another worker takes it within a minute, if one runs.",
    WaitReason.ACCOUNT_SUSPENDED: "`posthouse account resume {account}` releases it.",
    WaitReason.PAUSED: "If all outbound mail is captured, it waits until the setting is changed.",
    WaitReason.SCHEDULED: "Nothing to do: it is sent at its time.",
    WaitReason.SUPPRESSED: "`posthouse suppression remove {account} ADDRESS` before its next try, if its owner asks.",
    WaitReason.DUE: "If it stays due: `posthouse doctor` says whether workers run, `posthouse queue top` what they do.",
    WaitReason.ON_ITS_WAY: "Nothing to do: it is with a worker, or is due again within a minute.",
    WaitReason.GREYLISTED: "Nothing to do; `posthouse queue retry --message {message}` tries it now.",
    WaitReason.DEFERRED: "When the cause is fixed, `posthouse queue retry --message {message}` tries it now.",
    WaitReason.LANE_FULL: "`posthouse queue top` and `posthouse lane explain {lane}` say what the lane waits for.",
    WaitReason.LOST: "Report this as a fault; `posthouse audit` finds all such mail.",
}

# Reply signals about this service; the others are explained by the reason. "{}" is for the scopes.
_REPLY_SIGNALS: Final[dict[ReplySignalKind, tuple[str, str]]] = {
    ReplySignalKind.SLOW: (
        "The provider wants a lower rate of mail {}.",
        "Nothing for now: the lane slows down automatically. If it lasts, look for accounts with many complaints.",
    ),
    ReplySignalKind.CONNECTIONS: (
        "The provider wants fewer connections at a time.",
        "Nothing to do: the lane slows down automatically.",
    ),
    ReplySignalKind.PER_CONNECTION: ("The provider wants fewer messages on one connection.", "Nothing to do."),
    ReplySignalKind.BLOCK: (
        "The provider accepts no mail {}.",
        "Find the mail that led to it and stop it; then ask for removal on the provider's page.",
    ),
}
_SCOPES: Final = {
    Scope.ADDRESS: "from this service's IP address",
    Scope.NETWORK: "from the network of this service's IP address",
    Scope.DOMAIN: "from the sender's domain",
    Scope.DKIM_DOMAIN: "from the domain of the DKIM signature",
    Scope.SPF_DOMAIN: "from the domain of the return path",
    Scope.RECIPIENT: "for this recipient",
}
_CHECKS: Final[dict[Check, tuple[str, str]]] = {
    Check.PTR: (
        "The provider finds no reverse DNS (PTR) for this service's IP address.",
        "Set a PTR record whose name has this address, and use the name as `hostname`; `posthouse doctor` checks it.",
    ),
    Check.SPF: (
        "The provider could not verify the mail by SPF.",
        "Allow the IP address in the SPF record of the return path's domain; `posthouse doctor` checks it.",
    ),
    Check.DKIM: (
        "The provider could not verify the mail by DKIM.",
        "Check the DKIM records of the sender's domain.",
    ),
    Check.DMARC: (
        "The provider could not verify the mail by DMARC.",
        "The sender's domain needs a DMARC record, and a DKIM signature of the same domain that passes.",
    ),
    Check.TLS: (
        "The provider accepts mail only over TLS.",
        "Check why this connection had none; the attempt shows the server and the stage.",
    ),
}
_BLOCKED: Final = frozenset({ReplySignalKind.BLOCK})
_ANY: Final = frozenset(ReplySignalKind)
# Compared from the first to the last: lane ("*": any), kinds, a word of the reply ("": any), page.
_PAGES: Final[tuple[tuple[str, frozenset[ReplySignalKind], str, str], ...]] = (
    ("*", _BLOCKED, "spamhaus", "https://check.spamhaus.org/"),
    ("*", _BLOCKED, "spamcop", "https://www.spamcop.net/bl.shtml"),
    ("*", _BLOCKED, "barracuda", "https://www.barracudacentral.org/rbl/removal-request"),
    ("*", _BLOCKED, "proofpoint", "https://ipcheck.proofpoint.com/"),
    ("*", _BLOCKED, "cloudmark", "https://csi.cloudmark.com/en/reset/"),
    ("*", _BLOCKED, "senderscore", "https://www.senderscore.org/"),
    ("google", _ANY, "", "https://support.google.com/a/answer/81126"),
    ("microsoft", _BLOCKED, "banned send", "https://sender.office.com/"),
    ("microsoft", _BLOCKED, "", "https://go.microsoft.com/fwlink/?LinkID=614866"),
    ("microsoft", _ANY, "", "https://sendersupport.olc.protection.outlook.com/pm/troubleshooting.aspx"),
    ("yahoo", _ANY, "", "https://senders.yahooinc.com/smtp-error-codes/"),
    ("apple", _ANY, "", "https://support.apple.com/en-us/HT204137"),
    ("comcast", _ANY, "", "https://postmaster.comcast.net/"),
    ("gmx", _ANY, "", "https://postmaster.gmx.net/en/"),
    ("mimecast", _ANY, "", "https://community.mimecast.com/"),
    ("orange", _ANY, "", "https://postmaster.orange.fr/"),
    ("proofpoint", _ANY, "", "https://ipcheck.proofpoint.com/"),
    ("telekom", _ANY, "", "https://postmaster.t-online.de/"),
)


class Cause(StrEnum):
    RECIPIENT = "recipient"
    SENDER = "sender"
    CONTENT = "content"
    PROVIDER = "provider"
    SERVICE = "service"


# Each headline begins with "The" or "This", so that it can follow other words.
_EXPLANATIONS: Final[dict[DeliveryReason, tuple[Cause | None, str, str]]] = {
    R.DELIVERED: (
        None,
        "The recipient's mail server accepted the message.",
        "Nothing to do. If the recipient doesn't see it, ask them to check their spam folder.",
    ),
    R.UNKNOWN_ADDRESS: (
        Cause.RECIPIENT,
        "The address does not exist at its domain.",
        "Check the spelling with the recipient and remove the address from your list.",
    ),
    R.UNKNOWN_DOMAIN: (
        Cause.RECIPIENT,
        "The domain of the address does not exist.",
        "Check the spelling of the part after the @ and send again to the corrected address.",
    ),
    R.NO_MAIL_ACCEPTED: (
        Cause.RECIPIENT,
        "The domain of the address receives no mail.",
        "Ask the recipient for another address and remove this one from your list.",
    ),
    R.MAILBOX_DISABLED: (
        Cause.RECIPIENT,
        "The mailbox is disabled or no longer in use.",
        "Ask the recipient for another address and remove this one from your list.",
    ),
    R.MAILBOX_FULL: (
        Cause.RECIPIENT,
        "The mailbox is full.",
        "Contact the recipient some other way, or send again once there is space. Remove an address that stays full.",
    ),
    R.MAILBOX_BUSY: (
        Cause.RECIPIENT,
        "The mailbox receives more mail at the moment than its provider allows.",
        "Send fewer messages to this address, or send again later.",
    ),
    R.RECIPIENT_REFUSES: (
        Cause.RECIPIENT,
        "The recipient or their organisation does not accept mail from this sender.",
        "Ask the recipient to allow your sender address or domain.",
    ),
    R.SUPPRESSED: (
        Cause.RECIPIENT,
        "The address is on your suppression list, so nothing was sent.",
        "Leave it there, unless you know that it works and its owner wants your mail: then remove it and send again.",
    ),
    R.UNSUBSCRIBED: (
        Cause.RECIPIENT,
        "The recipient has unsubscribed from this list, so nothing was sent.",
        "Stop sending mail of this list to the address.",
    ),
    R.AUTHENTICATION_FAILED: (
        Cause.SENDER,
        "The provider could not verify that the mail comes from your domain (SPF, DKIM or DMARC).",
        "Check the DNS records of your sending domain under Domains, correct what is missing, and send again.",
    ),
    R.SENDER_ADDRESS: (
        Cause.SENDER,
        "The provider refused the sender address or its domain.",
        "Check that the domain of your sender address exists, has an MX record and receives mail.",
    ),
    R.SENDER_REPUTATION: (
        Cause.SENDER,
        "The provider refuses mail of your domain because of its reputation.",
        "Send only to people who asked for it, remove addresses that bounce, and send less until complaints stop.",
    ),
    R.ACCOUNT_SUSPENDED: (
        Cause.SENDER,
        "The account is suspended, and its mail is held.",
        "See the reason for the suspension under Account and ask the operator of this service to lift it.",
    ),
    R.SPAM: (
        Cause.CONTENT,
        "The provider classified the message as spam.",
        "Change what looks like spam (subject, links, pictures without text); send only to people who asked for it.",
    ),
    R.LISTED_LINK: (
        Cause.CONTENT,
        "The message contains a link or a domain that is on a block list.",
        "Remove the link or replace it, for instance a shortened link with the full one; then send again.",
    ),
    R.MALWARE: (
        Cause.CONTENT,
        "The provider found malware or phishing in the message.",
        "Check attachments and links, and whether someone else uses your account; send again without them.",
    ),
    R.ATTACHMENT_REFUSED: (
        Cause.CONTENT,
        "The provider does not accept this kind of attachment.",
        "Send a link to the file instead, or the file in another format.",
    ),
    R.TOO_LARGE: (
        Cause.CONTENT,
        "The message is larger than the provider accepts.",
        "Make attachments smaller or send links to them.",
    ),
    R.MALFORMED: (
        Cause.CONTENT,
        "The provider refused the message's format.",
        "Check custom headers, and mail that your program builds itself, against RFC 5322; then send again.",
    ),
    R.GREYLISTED: (
        Cause.PROVIDER,
        "The provider asks unknown senders to try again later (greylisting).",
        "Ask the recipient's provider to allow mail from this service.",
    ),
    R.RATE_LIMITED: (
        Cause.PROVIDER,
        "The provider limits how much mail it accepts at a time.",
        "Spread your mail over a longer time.",
    ),
    R.PROVIDER_BUSY: (
        Cause.PROVIDER,
        "The provider's mail server is busy or has a fault.",
        "Contact the recipient some other way, or send again later.",
    ),
    R.UNREACHABLE: (
        Cause.PROVIDER,
        "The provider's mail server could not be reached.",
        "Check the spelling of the part after the @; if it is right, send again later.",
    ),
    R.TIMED_OUT: (
        Cause.PROVIDER,
        "The provider's mail server did not answer in time.",
        "Check the spelling of the part after the @; if it is right, send again later.",
    ),
    R.DNS_FAILED: (
        Cause.PROVIDER,
        "The name servers of the recipient's domain gave no usable answer.",
        "Check the spelling of the part after the @; if it is right, its owner must repair the domain's DNS.",
    ),
    R.TLS_FAILED: (
        Cause.PROVIDER,
        "The encrypted connection with the provider's mail server failed.",
        "Ask the recipient's provider to repair TLS and the certificate of its mail server.",
    ),
    R.PROTOCOL_ERROR: (
        Cause.PROVIDER,
        "The provider's mail server did not follow the SMTP protocol.",
        "Ask the recipient's provider to look into it; the reply of its server is shown with the attempt.",
    ),
    R.NOT_SERVED: (
        Cause.PROVIDER,
        "The mail server that DNS names for the domain does not handle its mail.",
        "Ask the owner of the recipient's domain to correct its MX records.",
    ),
    R.POLICY: (
        Cause.PROVIDER,
        "The provider refused the message because of its rules.",
        "Read the server's reply, which often has a link with the details, and ask the recipient to allow your mail.",
    ),
    R.REFUSED: (
        Cause.PROVIDER,
        "The provider refused the message without a clear reason.",
        "Read the server's reply, and ask the recipient whether the address works.",
    ),
    R.DEFERRED: (
        Cause.PROVIDER,
        "The provider did not accept the message for now.",
        "Read the server's reply, and ask the recipient whether the address works.",
    ),
    R.AMBIGUOUS: (
        Cause.PROVIDER,
        "The connection ended before the provider confirmed the message, which may have arrived.",
        "Ask the recipient whether it arrived before you send it again.",
    ),
    R.BLOCKLISTED: (
        Cause.SERVICE,
        "The provider refuses or limits mail from this service's IP address.",
        "Ask the operator of this service to have the address removed from the block list; give the message's id.",
    ),
    R.REVERSE_DNS: (
        Cause.SERVICE,
        "The provider does not accept the hostname or reverse DNS of this service's IP address.",
        "Ask the operator of this service to correct its PTR record and hostname.",
    ),
    R.WAITING: (None, "The message is waiting for its first try.", _AUTOMATIC),
    R.SENDING: (None, "The message is being sent.", _AUTOMATIC),
    R.POSTPONED: (Cause.SERVICE, "This service postponed the message; nothing was sent.", _AUTOMATIC),
    R.WORKER_LOST: (
        Cause.SERVICE,
        "The process that sent the message stopped before a result was known; it may have arrived.",
        _AUTOMATIC,
    ),
    R.EXPIRED: (
        Cause.PROVIDER,
        "The message could not be delivered in the time allowed.",
        "See the attempts for what the provider's servers answered; send again if the recipient still needs it.",
    ),
    R.NOT_STORED: (Cause.SERVICE, "The content of the message was no longer stored.", f"Send it again. {_OPERATOR}"),
    R.CANCELLED: (
        Cause.SERVICE,
        "The operator of this service cancelled the message.",
        "Ask the operator why before you send it again; give the message's id.",
    ),
    R.INTERRUPTED: (Cause.SERVICE, "This service interrupted the attempt.", _OPERATOR),
    R.LOST: (Cause.SERVICE, "The message is missing from this service's schedule, so it will not be sent.", _OPERATOR),
    R.RESOLVER: (Cause.SERVICE, "This service could not reach its name servers.", _OPERATOR),
    R.SIMULATED: (
        None,
        "The simulator gave the result that the address asks for; nothing was sent.",
        "Nothing to do: this is a test.",
    ),
    R.OTHER: (
        Cause.PROVIDER,
        "The servers gave more different replies on this day than are counted separately.",
        "Look at the messages themselves.",
    ),
}


@dataclass(frozen=True, slots=True)
class Explanation:
    """`cause` is None where nothing is wrong."""

    reason: DeliveryReason
    headline: str
    cause: Cause | None
    what_to_do: str


_CANCELLED_BY_SENDER: Final = Explanation(
    R.CANCELLED,
    "The sender cancelled the message before the first try.",
    None,
    "Nothing to do: its credit was returned.",
)


@dataclass(frozen=True, slots=True)
class ReplySignalExplanation:
    """A reply signal for operators; `page` is the provider's, or that of the block list that it names."""

    headline: str
    what_to_do: str
    page: str | None


def operators_step(waiting_for: WaitReason, held_by: str | None, *, account: str, message: str, lane: str) -> str:
    """What an operator can do about a waiting recipient. `held_by` is as in the schedule."""
    if held_by == "operator":
        return f"`posthouse queue release --message {message}` releases it."
    if held_by == RESTORE:
        return f"If it was not sent before: `posthouse restore release --message {message}` releases it."
    if held_by is not None:
        return f"`posthouse lane resume {held_by}` releases it."
    return _STEPS[waiting_for].format(account=account, message=message, lane=lane)


def explain_reply_signal(lane: str, response: str, reply_signal: ReplySignal) -> ReplySignalExplanation | None:
    """The explanation of a reply signal that is about this service; None where the reason's explanation says it."""
    if reply_signal.checks:
        texts = [_CHECKS[check] for check in sorted(reply_signal.checks)]
        headline, what_to_do = (" ".join(parts) for parts in zip(*texts, strict=True))
    elif reply_signal.kind in _REPLY_SIGNALS:
        headline, what_to_do = _REPLY_SIGNALS[reply_signal.kind]
        headline = headline.format(" and ".join([_SCOPES[scope] for scope in sorted(reply_signal.scopes)]))
    else:
        return None
    return ReplySignalExplanation(headline, what_to_do, _page(lane, reply_signal.kind, normal_text(response)))


def page_of_block(lane: str, reply: str) -> str | None:
    """The page on which the provider, or the block list that it uses, takes requests to lift a block."""
    return _page(lane, ReplySignalKind.BLOCK, normal_text(reply))


def explain(outcome: str | None, code: int | None, response: str | None) -> Explanation:
    """The explanation of an attempt's outcome, or of a recipient's status, with the last reply or our own text."""
    if outcome == "cancelled":
        return _CANCELLED_BY_SENDER
    return explain_result(outcome, reason_of(outcome, code, response))


def explain_result(outcome: str | None, reason: DeliveryReason) -> Explanation:
    """The explanation of a result for this reason."""
    cause, headline, what_to_do = _EXPLANATIONS[reason]
    if cause is None or reason is R.POSTPONED:
        return Explanation(reason, headline, cause, what_to_do)
    if outcome == "deferred":
        return Explanation(reason, headline, cause, _TRIED_AGAIN + _continued(what_to_do))
    if outcome == "failed" and reason not in _NEED_NO_PREFIX:
        return Explanation(reason, _GIVEN_UP + _continued(headline), cause, what_to_do)
    return Explanation(reason, headline, cause, what_to_do)


def explain_reason(reason: DeliveryReason) -> Explanation:
    """The explanation of a reason, whatever the outcome."""
    cause, headline, what_to_do = _EXPLANATIONS[reason]
    return Explanation(reason, headline, cause, what_to_do)


def explain_wait(waiting_for: WaitReason, code: int | None, response: str | None) -> Explanation:
    """The explanation of a recipient that is not final, with the last reply if there was one."""
    reason = _WAITS[waiting_for]
    if reason is None or (reason is R.WAITING and response is not None):
        return explain("deferred", code, response)
    return explain_reason(reason)


def explain_unfinished(*, is_under_way: bool) -> Explanation:
    """The explanation of an attempt without an outcome."""
    return explain_reason(R.SENDING if is_under_way else R.WORKER_LOST)


def _page(lane: str, kind: ReplySignalKind, text: str) -> str | None:
    rows = (page for of, kinds, word, page in _PAGES if of in ("*", lane) and kind in kinds and word in text)
    return next(rows, None)


def _continued(sentence: str) -> str:
    return sentence[0].lower() + sentence[1:]
