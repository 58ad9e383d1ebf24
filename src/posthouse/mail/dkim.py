"""DKIM (RFC 6376, RFC 8463): key pairs, the DNS text that publishes them, and the signatures they make.

A signature covers the body and the fields that a reader sees or acts on. Each field is listed once more than it
occurs (oversigning), so that no one who has a copy can add a second From, a Cc or an unsubscribe link to it.

Header and body are signed in relaxed form: relays may refold lines and change white space. Regular expressions are
slow on large bodies, so only bytes methods are used, which run at memory speed; all signatures of a message share
the hash of the body.
"""

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from hashlib import sha256
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_der_private_key,
)

# RFC 8301 asks for 1024 at least and recommends 2048; more does not fit into one UDP answer.
RSA_BITS: Final = 2048
_PUBLIC_EXPONENT: Final = 65537

OVERSIGNED: Final = (
    "From", "Sender", "To", "Cc", "Subject", "Date", "Reply-To", "Message-ID", "References", "MIME-Version",
    "Content-Type", "Content-Transfer-Encoding", "List-Unsubscribe", "List-Unsubscribe-Post",
)  # fmt: skip
# Mailbox providers use a Feedback-ID and a CFBL-Address (RFC 9477) only if it is signed. They need no oversigning:
# their absence does no harm.
SIGNED_WHERE_PRESENT: Final = ("Feedback-ID", "CFBL-Address", "CFBL-Feedback-ID")
_SIGNED: Final = (*OVERSIGNED, *SIGNED_WHERE_PRESENT)
_COMPARED: Final = tuple([name.lower().encode() for name in _SIGNED])
_LINE_CHARACTERS: Final = 76
# Most messages of an installation have the same fields.
_NAMES_CACHED_MAX: Final = 1_000


class KeyType(StrEnum):
    """The value of `k=` in DNS."""

    RSA = "rsa"
    ED25519 = "ed25519"


@dataclass(frozen=True, slots=True)
class KeyPair:
    """`private_der` is PKCS #8; `public` is the value of `p=` in DNS."""

    private_der: bytes
    public: str

    def __repr__(self) -> str:
        return f"KeyPair(public={self.public!r})"


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A key, and where its public half is published: `<selector>._domainkey.<domain>`."""

    domain: str
    selector: str
    private: RSAPrivateKey | Ed25519PrivateKey = field(repr=False)

    @property
    def algorithm(self) -> str:
        return "rsa-sha256" if isinstance(self.private, RSAPrivateKey) else "ed25519-sha256"


def new_key_pair() -> KeyPair:
    """A new RSA key. Takes much of a second of CPU: call it from a thread."""
    return _pair(generate_private_key(_PUBLIC_EXPONENT, RSA_BITS))


def new_ed25519_key_pair() -> KeyPair:
    """A new Ed25519 key, to sign in addition to RSA: many receivers don't support it."""
    return _pair(Ed25519PrivateKey.generate())


def public_of(private_der: bytes) -> str:
    key = _load(private_der)
    if isinstance(key, Ed25519PrivateKey):
        # RFC 8463, 4: the bare 32 bytes, where RSA has a structure around its numbers.
        return b64encode(key.public_key().public_bytes_raw()).decode()
    der = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return b64encode(der).decode()


def record_text(public: str, key_type: KeyType = KeyType.RSA) -> str:
    return f"v=DKIM1; k={key_type}; p={public}"


def load_signing_key(domain: str, selector: str, private_der: bytes) -> SigningKey:
    private = _load(private_der)
    if not isinstance(private, RSAPrivateKey | Ed25519PrivateKey):
        raise TypeError(f"DKIM signs with RSA or Ed25519, not with {type(private).__name__}")
    return SigningKey(domain, selector, private)


def signatures(message: bytes, keys: Sequence[SigningKey], now: datetime) -> bytes:
    """The DKIM-Signature fields to prepend to the message, one for each key.

    The message is in its final form, before dot-stuffing: lines end with CRLF, without CR or LF elsewhere. Most of
    the work releases the GIL.
    """
    head, _, body = message.partition(b"\r\n\r\n")
    names, fields = _signed_fields(head)
    body_hash = b64encode(sha256(relaxed_body(body)).digest()).decode()
    seconds = int(now.timestamp())
    return b"".join([_signature(key, seconds, names, fields, body_hash) for key in keys])


def relaxed_body(body: bytes) -> bytes:
    """RFC 6376, 3.4.4: no white space before line ends, only single spaces elsewhere, no empty lines at the end."""
    if body and not body.endswith(b"\r\n"):
        body += b"\r\n"
    if b"\t" in body:
        body = body.replace(b"\t", b" ")
    # Each pass halves the longest run, so there are few.
    while b"  " in body:
        body = body.replace(b"  ", b" ")
    if b" \r\n" in body:
        body = body.replace(b" \r\n", b"\r\n")
    if body.endswith(b"\r\n\r\n") or body == b"\r\n":
        body = body.rstrip(b"\r\n")
        return body + b"\r\n" if body else b""
    return body


def relaxed_field(name: bytes, value: bytes) -> bytes:
    """RFC 6376, 3.4.2, without the line end; the name is in lower case and the value unfolded already."""
    return name + b":" + b" ".join([word for word in value.replace(b"\t", b" ").split(b" ") if word])


def _signed_fields(head: bytes) -> tuple[str, bytes]:
    """The names for `h=`, and the relaxed form of these fields, in the same order."""
    values: dict[bytes, list[bytes]] = {}
    for line in head.replace(b"\r\n ", b" ").replace(b"\r\n\t", b" ").split(b"\r\n"):
        name, _, value = line.partition(b":")
        values.setdefault(name.rstrip(b" \t").lower(), []).append(value)
    counts: list[int] = []
    fields: list[bytes] = []
    for compared in _COMPARED:
        present = values.get(compared, ())
        counts.append(len(present))
        # RFC 6376, 5.4.2: of several fields with the same name, the first mention means the last field.
        fields += [relaxed_field(compared, value) for value in reversed(present)]
    return _names(tuple(counts)), b"".join([line + b"\r\n" for line in fields])


@lru_cache(_NAMES_CACHED_MAX)
def _names(counts: tuple[int, ...]) -> str:
    """For `h=`: each name as often as it occurs, and those that are oversigned once more."""
    extra = [1] * len(OVERSIGNED) + [0] * len(SIGNED_WHERE_PRESENT)
    listed = zip(_SIGNED, counts, extra, strict=True)
    return _folded([name for name, count, more in listed for _ in range(count + more)])


def _signature(key: SigningKey, seconds: int, names: str, fields: bytes, body_hash: str) -> bytes:
    unsigned = (
        f" v=1; a={key.algorithm}; c=relaxed/relaxed; t={seconds};\r\n"
        f"\td={key.domain};\r\n\ts={key.selector};\r\n"
        f"\th={names};\r\n\tbh={body_hash};\r\n\tb="
    ).encode()
    covered = fields + relaxed_field(b"dkim-signature", unsigned.replace(b"\r\n", b""))
    if isinstance(key.private, RSAPrivateKey):
        signature = key.private.sign(covered, PKCS1v15(), SHA256())
    else:
        # RFC 8463, 3: what Ed25519 signs is the hash.
        signature = key.private.sign(sha256(covered).digest())
    text = b64encode(signature)
    capacity = _LINE_CHARACTERS - len("\tb=")
    lines = [text[start : start + capacity] for start in range(0, len(text), capacity)]
    return b"DKIM-Signature:" + unsigned + b"\r\n\t".join(lines) + b"\r\n"


def _folded(names: list[str]) -> str:
    """The names joined by colons, in lines of about 76 characters."""
    lines: list[str] = []
    line = names[0]
    for name in names[1:]:
        if len(line) + len(name) > _LINE_CHARACTERS - len("\th=:;"):
            lines.append(line)
            line = name
        else:
            line = f"{line}:{name}"
    lines.append(line)
    return ":\r\n\t".join(lines)


def _load(private_der: bytes) -> PrivateKeyTypes:
    # Checking an RSA key's primes takes 50 ms. Ours were generated here and stored with authenticated encryption.
    return load_der_private_key(private_der, password=None, unsafe_skip_rsa_key_validation=True)


def _pair(key: RSAPrivateKey | Ed25519PrivateKey) -> KeyPair:
    private_der = key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    return KeyPair(private_der, public_of(private_der))
