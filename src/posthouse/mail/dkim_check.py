"""Checks a DKIM signature (RFC 6376) of received mail, with dkimpy; the caller looks up the public key.

The mail is untrusted. Some of dkimpy's patterns take quadratic time on long runs of white space, so the mail is
bounded first, and a relaxed body is given to it with its white space reduced already. Two parsers must not see
different messages: one with a bare CR or LF, or with two From or To fields, counts as unsigned here.

Only signatures that prove enough are returned: RSA with SHA-256 (RFC 8301), over the whole body, From and To.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import dkim
from dkim.util import InvalidTagValueList, parse_tag_value

from posthouse.mail import header_reader
from posthouse.mail.address import AddressError, Mailbox
from posthouse.mail.address_fields import named_addresses, only_mailbox

HEAD_BYTES_MAX: Final = 64 * 1024
FIELDS_MAX: Final = 200
# A message has one or two signatures; further ones are ignored.
SIGNATURES_MAX: Final = 5
SIGNATURE_BYTES_MAX: Final = 4_000
SIGNED_FIELDS_MAX: Final = 100
# A record with an RSA key of 4096 bits has less than 800.
RECORD_CHARACTERS_MAX: Final = 1_000
RSA_BITS_MIN: Final = 1024

_ADDRESS_CHARACTERS_MAX: Final = 2_000
_has_long_space: Final = re.compile(rb"\s{40}").search
_reduce_space: Final = re.compile(rb"[ \t]+").sub
_is_name: Final = re.compile(r"[a-z0-9_.-]{1,200}\Z").match


@dataclass(frozen=True, slots=True)
class Signature:
    """`number` is its place among the message's signatures."""

    number: int
    domain: str
    selector: str
    is_body_relaxed: bool

    @property
    def record_name(self) -> str:
        return f"{self.selector}._domainkey.{self.domain}"


@dataclass(frozen=True, slots=True)
class SignedMail:
    """A message's author, the addresses in its To field, and its signatures over both."""

    raw: bytes
    author: Mailbox
    addressees: frozenset[str]
    signatures: tuple[Signature, ...]


def read(raw: bytes) -> SignedMail | None:
    """None if the message has no signature that proves enough. Never raises, whatever the bytes are."""
    line_ends = raw.count(b"\r\n")
    head = raw[: raw.find(b"\r\n\r\n") + 2]
    if len(head) > HEAD_BYTES_MAX or not line_ends == raw.count(b"\r") == raw.count(b"\n"):
        return None
    fields = header_reader.split_fields(head)
    if not fields or len(fields) > FIELDS_MAX:
        return None
    authors, addressees, written = (
        [field for field in fields if field.name == name] for name in (b"from", b"to", b"dkim-signature")
    )
    if len(authors) != 1 or len(addressees) != 1:
        return None
    try:
        author = only_mailbox(authors[0].value.decode("ascii"))
        named = named_addresses(addressees[0].value[:_ADDRESS_CHARACTERS_MAX].decode("ascii"))
    except (AddressError, UnicodeDecodeError):
        return None
    found = [_signature(number, field.written) for number, field in enumerate(written[:SIGNATURES_MAX])]
    signatures = tuple([signature for signature in found if signature is not None])
    return SignedMail(raw, author, frozenset(named), signatures) if signatures else None


def is_valid(mail: SignedMail, signature: Signature, record: str) -> bool:
    """Whether the key of this DNS record made the signature.

    The header is checked first, which takes a millisecond: a large body takes up to half a second for each megabyte,
    and only the owner of the key can make its header valid.
    """
    head, end, body = mail.raw.partition(b"\r\n\r\n")
    try:
        if not _is_usable(record) or not _is_header_valid(head + end, signature.number, record):
            return False
        if signature.is_body_relaxed:
            body = _reduce_space(b" ", body)
        checked = dkim.DKIM(head + end + body, minkey=RSA_BITS_MIN)
        return checked.verify(signature.number, dnsfunc=_answer(record)) is True
    except (dkim.DKIMException, InvalidTagValueList, ValueError, LookupError, TypeError):
        # dkimpy raises the others on mail and keys that it doesn't expect.
        return False


def _is_header_valid(head: bytes, number: int, record: str) -> bool:
    checked = dkim.DKIM(head, minkey=RSA_BITS_MIN)
    tags, names, fields = checked.verify_headerprep(number)
    # Without the body's hash, dkimpy checks only the signature.
    header_tags = {name: value for name, value in tags.items() if name != b"bh"}
    return checked.verify_sig(header_tags, names, fields[number], _answer(record)) is True


def _answer(record: str) -> Callable[..., bytes]:
    """In place of dkimpy's own DNS query, which would block."""
    return lambda _name, timeout: record.encode()  # noqa: ARG005


def _signature(number: int, written: bytes) -> Signature | None:
    if len(written) > SIGNATURE_BYTES_MAX or _has_long_space(written):
        return None
    try:
        tags = {
            name.decode("ascii"): value.decode("ascii")
            for name, value in parse_tag_value(written.partition(b":")[2]).items()
        }
    except (InvalidTagValueList, UnicodeDecodeError):
        return None
    domain, selector = (tags.get(name, "").lower() for name in "ds")
    covered = [name.strip().lower() for name in tags.get("h", "").split(":")]
    # With l= anything could be added to the body.
    if tags.get("a") != "rsa-sha256" or "l" in tags or len(covered) > SIGNED_FIELDS_MAX:
        return None
    if not {"from", "to"} <= set(covered) or not _is_name(domain) or not _is_name(selector):
        return None
    return Signature(number, domain, selector, tags.get("c", "").partition("/")[2] == "relaxed")


def _is_usable(record: str) -> bool:
    """A key that is being tested proves nothing (RFC 6376, 3.6.1)."""
    if len(record) > RECORD_CHARACTERS_MAX or not record.isascii():
        return False
    flags = parse_tag_value(record.encode()).get(b"t", b"").split(b":")
    return b"y" not in [flag.strip().lower() for flag in flags]
