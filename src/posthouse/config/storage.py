"""Settings of storage: the database, its disk space, and how long data is kept."""

from typing import Final
from urllib.parse import parse_qs, urlsplit

from pydantic import Field, field_validator

from posthouse.config.section import Section
from posthouse.rules.database_url import each_host
from posthouse.rules.limits import GIB

AUTO: Final = "auto"
_LOOPBACK_NAMES: Final = ("", "localhost", "127.0.0.1", "::1")


def _hosts(url: str) -> list[str]:
    parts = urlsplit(url)
    return parse_qs(parts.query).get("host", [parts.hostname or ""])


class DatabaseSection(Section):
    """PostgreSQL."""

    url: str = Field(
        repr=False,
        description="PostgreSQL 15 or newer: postgresql://user:password@host:port/database. A host that "
        "starts with a slash (…/database?host=/run/postgresql) is a directory of Unix sockets. Several hosts "
        "(postgresql://user@one:5432,two:5432/database) are a primary and its standbys: all are tried at the same "
        "time, and the one that accepts writes is used.",
    )
    pool_max: int = Field(
        10,
        ge=1,
        le=1000,
        description="The most connections that a process opens. In an HTTP process, two fifths of them are for intake "
        "only.",
    )
    timeout_factor: float = Field(
        1.0,
        ge=1,
        le=60,
        description="How many times longer than usual to wait for PostgreSQL before a client is asked to try again. "
        "With 1, every response comes within five seconds, even if PostgreSQL hangs.",
    )
    standbys: int = Field(
        0,
        ge=0,
        le=10,
        description="How many standbys PostgreSQL must wait for at each commit (synchronous_standby_names), so that "
        "accepted mail survives the loss of the primary's machine. A primary that waits for fewer is refused, when a "
        "process connects and every five seconds: no mail is accepted then. 0: not checked.",
    )
    hold_after_restore: bool = Field(
        True,
        description="After PostgreSQL was restored to an earlier moment, hold the mail that it had accepted before, "
        "until an operator releases it (posthouse restore): much of it was already sent. A failover to a replica that "
        "lost committed data counts as a restore. Off: it is sent, part of it for the second time.",
    )
    allow_unsafe: bool = Field(
        False,
        description="For development only: start although PostgreSQL runs with fsync or full_page_writes "
        "off, so that accepted mail may be lost in a crash.",
    )

    @field_validator("url")
    @classmethod
    def _is_postgresql(cls, given: str) -> str:
        if urlsplit(given).scheme not in ("postgresql", "postgres"):
            raise ValueError("must begin with postgresql://")
        return given

    @property
    def is_on_this_machine(self) -> bool:
        """Whether the URL names this machine: no host, a directory of sockets, or a loopback address."""
        hosts = [host for url in each_host(self.url) for host in _hosts(url)]
        return all(host.startswith("/") or host in _LOOPBACK_NAMES for host in hosts)


class DiskSpaceSection(Section):
    """When mail is refused for lack of disk space."""

    directory: str = Field(
        AUTO,
        description="The directory of PostgreSQL's data, or any other on the same volume, if PostgreSQL is on this "
        "machine: while that volume has too little space, nothing more is stored for customers. auto: it is found "
        "if PostgreSQL is on this machine. Empty: not checked.",
    )
    free_bytes_min: int = Field(
        2 * GIB,
        ge=1,
        description="Free bytes of that volume at which mail is refused temporarily (503, and 452 over SMTP); "
        "at a quarter more it is accepted again. The rest of the service uses the remaining space.",
    )
    database_bytes_max: int = Field(
        0,
        ge=0,
        description="Size of the database, in bytes, at which mail is refused in the same way, for a PostgreSQL on "
        "another machine; at a twentieth less it is accepted again. 0: not checked.",
    )


class RetentionSection(Section):
    """How long data is kept."""

    messages_days: int = Field(30, ge=2, description="Days after which messages and their results are dropped.")
    bodies_days: int = Field(
        3, ge=1, description="Days after which the bodies of messages whose results are all final are dropped."
    )
    webhooks_days: int = Field(7, ge=1, description="Days after which the log of webhook requests is dropped.")
