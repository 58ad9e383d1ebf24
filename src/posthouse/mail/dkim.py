"""DKIM keys (RFC 6376): a key pair, and the DNS text that publishes its public half."""

from base64 import b64encode
from dataclasses import dataclass
from typing import Final

from cryptography.hazmat.primitives.asymmetric import rsa
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


@dataclass(frozen=True, slots=True)
class KeyPair:
    """`private_der` is PKCS #8; `public` is what stands after `p=` in DNS."""

    private_der: bytes
    public: str

    def __repr__(self) -> str:
        return f"KeyPair(public={self.public!r})"


def new_key_pair() -> KeyPair:
    """A fresh RSA key. Takes a good part of a second of CPU: call it from a thread."""
    key = rsa.generate_private_key(_PUBLIC_EXPONENT, RSA_BITS)
    private_der = key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    return KeyPair(private_der, public_of(private_der))


def public_of(private_der: bytes) -> str:
    key = load_der_private_key(private_der, password=None)
    der = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return b64encode(der).decode()


def record_text(public: str) -> str:
    return f"v=DKIM1; k=rsa; p={public}"
