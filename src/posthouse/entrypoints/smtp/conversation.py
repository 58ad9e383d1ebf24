"""An SMTP session seen from the server, without a socket: bytes in, replies and effects out.

While an effect is open, the conversation only collects bytes, and continues with them when it gets the result. The way
the network splits the bytes has no influence on replies and effects.

Only CRLF ends a line. A line that is too long or contains a control character (including a bare CR or LF) is refused as
a whole, up to its CRLF, so that no part of it can be read as a command.
"""

import re
from collections.abc import Hashable
from typing import Final

from posthouse.entrypoints.smtp import replies
from posthouse.entrypoints.smtp.commands import (
    CHUNK,
    COMMANDS_MAX,
    CREDENTIALS,
    DISCARDED_BYTES_MAX,
    DOTTED,
    LINES,
    LOGINS_FAILED_MAX,
    NOTHING,
    REFUSED_LINE,
    AcceptMessage,
    Commands,
    StartTls,
    Step,
)
from posthouse.entrypoints.smtp.content import Content
from posthouse.entrypoints.smtp.replies import CLOSING, ServerReply, encoded

# RFC 5321 has 512; the parameters of AUTH, DSN, SIZE and 8BITMIME add up to another 1,200.
LINE_BYTES_MAX: Final = 2_048
# RFC 4954, 4.
AUTHENTICATION_LINE_BYTES_MAX: Final = 12_288

_find_control: Final = re.compile(rb"[\x00-\x1f\x7f]").search

_AUTHENTICATED: Final = encoded(ServerReply(235, "2.7.0", "Authentication successful"))


class Conversation(Commands):
    __slots__ = ()

    @property
    def content(self) -> Content | None:
        """The message that the client has begun to send; None if there is none, or if it is already being accepted."""
        return None if self._effect is not None else self._content

    @property
    def waiting_bytes(self) -> int:
        return len(self._waiting)

    @property
    def is_authenticated(self) -> bool:
        return self._is_authenticated or not self._policy.needs_authentication

    def greet(self) -> Step:
        self._output.append(f"220 {self._policy.hostname} ESMTP\r\n".encode())
        return self._step()

    def receive(self, data: bytes) -> Step:
        if self._waiting:
            data = self._waiting + data
            self._waiting = b""
        return self._read(data)

    def tls_started(self) -> Step:
        """Discards all state from before TLS (RFC 3207, 4.2)."""
        self._is_secure = True
        self._client_name = ""
        self._reset_transaction()
        return self._continue()

    def authenticated(self, holder: Hashable = None) -> Step:
        """From now on, content counts against the holder's share."""
        self._is_authenticated = True
        self._holder = holder
        self._output.append(_AUTHENTICATED)
        return self._continue()

    def not_authenticated(self, reply: ServerReply) -> Step:
        if reply.code >= 500:
            self._logins_failed += 1
        if self._logins_failed >= LOGINS_FAILED_MAX:
            self._close(replies.TOO_MANY_LOGINS)
            return self._step()
        self._output.append(encoded(reply))
        return self._continue()

    def message_answered(self, reply: ServerReply) -> Step:
        """The service accepted or refused the message; the reply says which."""
        self._reset_transaction()
        self._commands_left = COMMANDS_MAX
        self._output.append(encoded(reply))
        return self._continue()

    def end(self, reply: ServerReply = CLOSING) -> Step:
        """Close once a message that is being sent or accepted is complete."""
        if isinstance(self._effect, AcceptMessage) or self._content is not None:
            self._is_ending = True
        else:
            self._close(reply)
        return self._step()

    def close_with(self, reply: ServerReply) -> Step:
        """Close immediately; only a message that is being accepted still gets its reply."""
        if isinstance(self._effect, AcceptMessage):
            self._is_ending = True
        else:
            self._close(reply)
        return self._step()

    def disconnected(self) -> None:
        """The client has disconnected."""
        self._reset_transaction()
        self._expected = NOTHING

    def _continue(self) -> Step:
        self._effect = None
        if self._is_ending:
            self._close(CLOSING)
        data = self._waiting
        self._waiting = b""
        return self._read(data)

    def _read(self, data: bytes) -> Step:
        position, size = 0, len(data)
        while position < size:
            if self._effect is not None:
                if position and isinstance(self._effect, StartTls):
                    # Sent in cleartext, it must not be read as if TLS had protected it.
                    self._output.pop()
                    self._close(replies.TLS_INJECTED)
                elif self._expected != NOTHING:
                    self._waiting = data[position:]
                break
            expected = self._expected
            if expected == DOTTED:
                position = self._read_dotted(data, position)
            elif expected == CHUNK:
                position = self._read_chunk(data, position)
            elif expected == REFUSED_LINE:
                position = self._skip_line(data, position)
            else:
                position = self._read_line(data, position)
        return self._step()

    def _step(self) -> Step:
        output = self._output
        if not output:
            return Step(b"", self._effect)
        self._output = []
        return Step(output[0] if len(output) == 1 else b"".join(output), self._effect)

    def _read_line(self, data: bytes, position: int) -> int:
        end = data.find(b"\r\n", position)
        if end < 0:
            length = len(data) - position - data.endswith(b"\r")
            is_short = length <= LINE_BYTES_MAX or length <= self._line_bytes_max(data, position)
            if is_short and data.find(b"\n", position) < 0:
                self._waiting = data[position:]
                return len(data)
            self._refuse_line(REFUSED_LINE)
            return position
        line = data[position:end]
        size = end - position
        if _find_control(line) or (size > LINE_BYTES_MAX and size > self._line_bytes_max(data, position)):
            self._refuse_line(LINES)
        elif self._expected == CREDENTIALS:
            self._read_credentials(line)
        else:
            self._run_command(line)
        return end + 2

    def _line_bytes_max(self, data: bytes, position: int) -> int:
        if self._expected == CREDENTIALS or data[position : position + 5].upper() == b"AUTH ":
            return AUTHENTICATION_LINE_BYTES_MAX
        return LINE_BYTES_MAX

    def _refuse_line(self, expected: int) -> None:
        self._expected = expected
        self._exchange = None
        self._refuse_mistake(replies.MALFORMED)

    def _skip_line(self, data: bytes, position: int) -> int:
        end = data.find(b"\r\n", position)
        if end >= 0:
            self._expected = LINES
            return end + 2
        self._discard(len(data) - position)
        if data.endswith(b"\r"):
            self._waiting = b"\r"
        return len(data)

    def _read_dotted(self, data: bytes, position: int) -> int:
        content = self._content
        if content is None:  # pragma: no cover (DOTTED is only expected with content)
            return len(data)
        end = content.add_dotted(data, position)
        if end < 0:
            if content.fault is not None:
                self._discard(len(data) - position)
            return len(data)
        self._expected = LINES
        self._hand_over(content.dotted())
        return end

    def _read_chunk(self, data: bytes, position: int) -> int:
        stop = min(len(data), position + self._chunk_left)
        self._chunk_left -= stop - position
        if self._chunk_refusal is not None:
            self._discard(stop - position)
        elif self._content is not None:
            self._content.add_chunk(data, position, stop)
        if not self._chunk_left and self._effect is None:
            self._end_chunk()
        return stop

    def _discard(self, size: int) -> None:
        self._discarded_bytes += size
        if self._discarded_bytes > DISCARDED_BYTES_MAX:
            self._close(replies.TOO_MUCH)
