"""Certificates of private authorities: for receivers in the test's process, and as files for the service."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Self

import trustme

from posthouse.entrypoints.smtp.server import TlsFiles
from posthouse.wire.webhook_client import public_tls

# Of the SMTP receiver.
NAME: Final = "receiver.example.com"


@cache
def trusting_webhooks(authority_pem: bytes) -> ssl.SSLContext:
    """As the service has it; loading the machine's authorities takes 0.07 s of CPU."""
    return public_tls(authority_pem.decode())


@dataclass(frozen=True, slots=True)
class Certificates:
    """A private authority; what its customers trust; and the servers' contexts by their `starttls` word."""

    authority_pem: bytes
    servers: Mapping[str, ssl.SSLContext]

    @classmethod
    def make(cls, name: str = NAME) -> Self:
        authority = trustme.CA()
        servers = {}
        for word, issuer, owner in (
            ("sound", authority, name),
            ("untrusted", trustme.CA(), name),
            ("othername", authority, "other.example.net"),
        ):
            servers[word] = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            issuer.issue_cert(owner).configure_cert(servers[word])
        for word in ("injected", "half"):
            servers[word] = servers["sound"]
        return cls(authority.cert_pem.bytes(), servers)

    def trusting(self) -> ssl.SSLContext:
        return ssl.create_default_context(cadata=self.authority_pem.decode())


@dataclass(frozen=True)
class Authority:
    """A private certificate authority, and the certificate files of a server."""

    ca: trustme.CA
    directory: Path

    @classmethod
    def make(cls, directory: Path, *names: str) -> Self:
        authority = cls(trustme.CA(), directory)
        authority.issue(*names)
        return authority

    @property
    def authority_file(self) -> Path:
        return self.directory / "authority.pem"

    @property
    def certificate_file(self) -> Path:
        return self.directory / "certificate.pem"

    @property
    def key_file(self) -> Path:
        return self.directory / "key.pem"

    @property
    def files(self) -> TlsFiles:
        return TlsFiles(self.certificate_file, self.key_file)

    def issue(self, *names: str) -> None:
        issued = self.ca.issue_cert(*names)
        self.certificate_file.write_bytes(b"".join([pem.bytes() for pem in issued.cert_chain_pems]))
        self.key_file.write_bytes(issued.private_key_pem.bytes())
        self.authority_file.write_bytes(self.ca.cert_pem.bytes())
