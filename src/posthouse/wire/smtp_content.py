"""The content of an outgoing mail as SMTP carries it: 7-bit, CRLF, dot-stuffed."""


class SmtpContent:
    """A finished mail: 7-bit, every line ends with CRLF. Dot-stuffed once, however many sessions send it."""

    __slots__ = ("_stuffed", "content")

    def __init__(self, content: bytes) -> None:
        if not content.endswith(b"\r\n") or not content.isascii():
            raise ValueError("the content must be 7-bit and end with CRLF")
        ends = content.count(b"\r\n")
        # A bare CR or LF before a dot is how SMTP smuggling hides a second mail.
        if content.count(b"\n") != ends or content.count(b"\r") != ends:
            raise ValueError("the content has a CR or LF outside a CRLF")
        self.content = content
        self._stuffed: bytes | None = None

    @property
    def stuffed(self) -> bytes:
        if self._stuffed is None:
            self._stuffed = dot_stuffed(self.content)
        return self._stuffed


def dot_stuffed(content: bytes) -> bytes:
    """Double the dot at the start of each line that begins with a dot (RFC 5321, 4.5.2)."""
    if content.startswith(b"."):
        content = b"." + content
    return content.replace(b"\r\n.", b"\r\n..") if b"\r\n." in content else content
