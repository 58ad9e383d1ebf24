"""A mailbox provider's feedback loop: its reports are signed with DKIM, and a scripted name server has its key."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from ipaddress import ip_network
from typing import Final

import dkim
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from posthouse.flows.inbound.reports import ComplaintCheck
from posthouse.mail.dkim import public_of, record_text
from posthouse.rules.feedback_loops import FeedbackLoops
from posthouse.wire.dns import Resolver

SIGNED: Final = ("From", "To", "Subject")
# A network that tests trust without a signature.
TRUSTED: Final = "192.0.2.99"


@dataclass(frozen=True)
class FeedbackLoop:
    """Keys are made once for each size: that takes long."""

    domain: str
    selector: str = "s1"
    bits: int = 2048

    @cached_property
    def record(self) -> str:
        key = _key(self.bits)
        return record_text(public_of(key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())))

    @property
    def zone(self) -> Mapping[str, Sequence[str]]:
        return {f"{self.selector}._domainkey.{self.domain}": [self.record]}

    def signed(
        self,
        mail: bytes,
        *,
        fields: Sequence[str] = SIGNED,
        canonical: tuple[bytes, bytes] = (b"relaxed", b"simple"),
        with_length: bool = False,
        algorithm: bytes = b"rsa-sha256",
    ) -> bytes:
        private = _key(self.bits).private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
        signature = dkim.sign(
            mail,
            self.selector.encode(),
            self.domain.encode(),
            private,
            canonicalize=canonical,
            signature_algorithm=algorithm,
            include_headers=[name.encode() for name in fields],
            length=with_length,
        )
        assert isinstance(signature, bytes)
        return signature + mail


def complaint_check(resolver: Resolver | None = None, *providers: str) -> ComplaintCheck:
    """Without providers, it trusts only `TRUSTED`."""
    loops = FeedbackLoops(frozenset(providers), (ip_network(TRUSTED),))
    return ComplaintCheck(resolver=resolver or Resolver(), loops=loops)


@lru_cache
def _key(bits: int) -> RSAPrivateKey:
    return generate_private_key(65537, bits)
