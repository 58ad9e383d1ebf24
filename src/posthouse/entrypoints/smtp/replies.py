"""SMTP replies: the reply as a value, its bytes, and the replies that several modules use."""

import re
from typing import Final, NamedTuple

# RFC 5321, 4.5.3.1.5: a reply line has at most 512 octets, including its code and line end.
TEXT_CHARACTERS_MAX: Final = 480

# A reply is one line of ASCII, whatever its text contains.
_unprintable: Final = re.compile(r"[^ -~]+").sub


class ServerReply(NamedTuple):
    """`status` is the enhanced status code (RFC 3463); empty for none."""

    code: int
    status: str
    text: str


def encoded(reply: ServerReply) -> bytes:
    text = reply.text
    if not (text.isascii() and text.isprintable()):
        text = _unprintable("?", text)
    if len(text) > TEXT_CHARACTERS_MAX:
        text = text[: TEXT_CHARACTERS_MAX - 3] + "..."
    return f"{reply.code} {reply.status} {text}\r\n".encode() if reply.status else f"{reply.code} {text}\r\n".encode()


# Replies of the server.
FAULT: Final = ServerReply(451, "4.3.0", "The service failed, and the failure was logged. Try again later.")
CLOSING: Final = ServerReply(421, "4.3.2", "The service is closing; try again in a moment.")
TOO_MANY_CONNECTIONS: Final = ServerReply(
    421, "4.7.0", "Too many connections; reuse those you have, or come back later."
)
TOO_SLOW: Final = ServerReply(421, "4.4.2", "Nothing arrived in time; connect again when there is mail.")
TOO_LONG_A_SESSION: Final = ServerReply(421, "4.4.2", "This session has lasted long enough; open a new one.")
LOGIN_FAULT: Final = ServerReply(
    454, "4.7.0", "The password can't be checked now; the failure was logged. Try again later."
)

TOO_MANY_SESSIONS: Final = ServerReply(
    454, "4.7.0", "This account has too many sessions; reuse those you have, or come back later."
)

# Replies of the conversation.
MALFORMED: Final = ServerReply(
    500, "5.5.2", "The line is too long, or contains a control character or a bare CR or LF: end lines with CR LF."
)
UNKNOWN: Final = ServerReply(500, "5.5.1", "There is no such command; HELP lists the commands.")
NOT_HERE: Final = ServerReply(502, "5.5.1", "This server does not offer that.")
NO_ARGUMENT: Final = ServerReply(501, "5.5.4", "This command takes no argument.")
NAME_YOURSELF: Final = ServerReply(501, "5.5.4", "Say EHLO with your host's name.")
EHLO_FIRST: Final = ServerReply(503, "5.5.1", "Say EHLO first.")
MAIL_FIRST: Final = ServerReply(503, "5.5.1", "Say MAIL first.")
MAIL_AGAIN: Final = ServerReply(503, "5.5.1", "MAIL was already given; RSET starts over.")
CHUNKS_BEGUN: Final = ServerReply(
    503, "5.5.1", "The message was begun with BDAT: continue with BDAT, or start over with RSET."
)
NO_RECIPIENTS: Final = ServerReply(554, "5.5.1", "There are no valid recipients.")
TOO_MANY_RECIPIENTS: Final = ServerReply(
    452, "4.5.3", "Too many recipients: send to the others in another transaction."
)
TLS_FIRST: Final = ServerReply(530, "5.7.0", "Must issue a STARTTLS command first.")
TLS_FOR_PASSWORDS: Final = ServerReply(538, "5.7.11", "Encryption is required for passwords: STARTTLS first.")
TLS_ALREADY: Final = ServerReply(503, "5.5.1", "TLS is already on.")
TLS_INJECTED: Final = ServerReply(554, "5.5.1", "Nothing may follow STARTTLS before TLS is on.")
LOGIN_FIRST: Final = ServerReply(530, "5.7.0", "Authentication required: AUTH first.")
LOGIN_ALREADY: Final = ServerReply(503, "5.5.1", "You are already authenticated.")
LOGIN_NOT_NOW: Final = ServerReply(503, "5.5.1", "AUTH is not allowed during a transaction.")
LOGIN_MECHANISM: Final = ServerReply(504, "5.5.4", "Use AUTH PLAIN or AUTH LOGIN.")
LOGIN_CANCELLED: Final = ServerReply(501, "5.7.0", "Authentication cancelled.")
LOGIN_UNREADABLE: Final = ServerReply(501, "5.5.2", "That is not the base64 that the mechanism requires.")
LOGIN_FOR_ANOTHER: Final = ServerReply(
    535, "5.7.8", "Acting for another user is not permitted: leave the authorization identity empty."
)

TOO_MANY_MISTAKES: Final = ServerReply(421, "4.7.0", "Too many mistakes.")
TOO_MANY_REJECTED: Final = ServerReply(421, "4.7.0", "Too many refused recipients.")
TOO_MANY_COMMANDS: Final = ServerReply(421, "4.7.0", "Too many commands without a message.")
TOO_MANY_TRANSACTIONS: Final = ServerReply(421, "4.7.0", "Too much for one session; continue in a new one.")
TOO_MANY_LOGINS: Final = ServerReply(421, "4.7.0", "Too many failed logins; check username and password.")
TOO_MUCH: Final = ServerReply(421, "4.7.0", "Too much refused content.")
CHUNK_UNREADABLE: Final = ServerReply(
    501, "5.5.4", "Write BDAT, the chunk's size in octets, and LAST for the last chunk."
)
NO_BROWSERS: Final = ServerReply(421, "4.7.0", "This is an SMTP server.")
