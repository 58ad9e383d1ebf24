"""The checks of `posthouse doctor`, in one table: how serious a finding is, and why it matters.

A finding also says what was found, and the command, setting or record that fixes it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

_LOST = "Accepted mail could be lost in a power cut."
_REFUSED = "Mailbox providers refuse mail, or put it into the spam folder."
_TLS = "Customers' programs refuse to log in, or send nothing."

NATS_VERSION_MIN: Final = (2, 10)
STREAM_CAPACITY_PART_MIN: Final = 0.1


class Severity(StrEnum):
    """`ok` if the check passed, otherwise how serious its failure is."""

    OK = "ok"
    WARNING = "warning"
    CRITICAL = "critical"


_W, _C = Severity.WARNING, Severity.CRITICAL


class Check(NamedTuple):
    """`why` and `runbook` are empty for a check that only informs, and always passes."""

    title: str
    severity: Severity
    why: str
    # The name of its page in docs/runbooks.
    runbook: str


CHECKS: Final[Mapping[str, Check]] = {
    "settings": Check("settings can be used", _C, "Nothing starts with them.", "settings"),
    "settings_private": Check("the file is private", _W, "It holds secrets.", "settings"),
    # PostgreSQL.
    "postgres": Check("PostgreSQL answers", _C, "No mail is accepted or delivered without it.", "database-away"),
    "postgres_version": Check(
        "PostgreSQL is new enough", _C, "Statements of this service need it.", "database-settings"
    ),
    "fsync": Check("fsync is on", _C, _LOST, "database-settings"),
    "full_page_writes": Check("full_page_writes is on", _C, _LOST, "database-settings"),
    "synchronous_commit": Check("synchronous_commit is on", _C, _LOST, "database-settings"),
    "locks": Check(
        "enough locks per transaction", _C, "A transaction may touch many days of every table.", "database-settings"
    ),
    "primary": Check("the database can be written", _C, "No mail is accepted.", "database-away"),
    "autovacuum": Check("autovacuum is on", _W, "Tables grow, and everything becomes slower.", "database-settings"),
    "connections": Check(
        "connections are left", _C, "A process that gets none answers 503, or delivers nothing.", "database-connections"
    ),
    "replication": Check("standbys follow", _C, "Commits wait for a standby that is not there.", "standbys"),
    "slots": Check(
        "replication slots are used", _W, "PostgreSQL keeps its log for them until the disk is full.", "standbys"
    ),
    "archive": Check(
        "the write-ahead log is archived", _C, "A restore ends where the archive does, and the disk fills.", "backup"
    ),
    "backup": Check("the last backup", _C, "What is not in a backup is lost with the disk.", "backup"),
    "transactions": Check(
        "no old open transaction", _W, "Old rows can't be removed, and readers of events wait.", "old-transaction"
    ),
    "clock": Check(
        "the database's clock is trusted", _C, "Until it is, nothing is deleted and little expires.", "clock-step"
    ),
    "host_clock": Check(
        "this machine's clock agrees", _W, "Tokens and webhook signatures depend on the time.", "clock-step"
    ),
    # What is stored.
    "tables": Check("tables up to date", _C, "This version can't use them.", "tables-old"),
    "partitions": Check(
        "partitions for the next 7 days", _C, "Mail of a day without partitions is refused.", "partitions-short"
    ),
    "maintenance": Check(
        "the last maintenance",
        _W,
        "No partitions are made or dropped, and domains are not re-checked.",
        "maintenance-overdue",
    ),
    "seals": Check(
        "stored secrets can be opened", _C, "Mail is not signed, and webhooks are not sent.", "sealed-secrets"
    ),
    "sandbox": Check(
        "sandbox domain", _W, "New accounts need their own domain for their first message.", "domain-records"
    ),
    "domains": Check(
        "domains' records", _W, "After 7 days without them a domain may no longer send.", "domain-records"
    ),
    "sender_members": Check(
        "only operators read the service's mail",
        _W,
        "Its members can open other users' links to new passwords.",
        "sender-members",
    ),
    "storage": Check("space in storage", _C, "Mail is refused when it is full.", "storage-low"),
    # Waiting work.
    "workers": Check("workers run", _C, "Mail is accepted and waits.", "no-workers"),
    "oldest_due": Check("due mail is picked up", _C, "Mail arrives late.", "queue-stuck"),
    "oldest_webhook": Check("due webhooks are picked up", _W, "Customers learn results late.", "webhook-queue-stuck"),
    "held": Check("no mail is held for long", _W, "Held mail waits until an operator releases it.", "held-mail"),
    "restored": Check(
        "no mail is held since a restore", _C, "What was accepted before it is not sent.", "held-after-restore"
    ),
    "pauses": Check(
        "no lane is paused for long", _W, "A paused lane's mail waits until an operator resumes it.", "held-mail"
    ),
    # The stream.
    "stream": Check("the stream's server", _C, "As long as none answers, mail is accepted and waits.", "stream-away"),
    "stream_version": Check(
        "NATS is new enough", _W, "Older versions lose or repeat tickets when a server ends.", "stream-away"
    ),
    "stream_replicas": Check(
        "the stream's replicas", _W, "Tickets wait while the server that has them is away.", "stream-away"
    ),
    "stream_space": Check("space in the stream", _C, "Mail waits for the next round of dispatch.", "stream-full"),
    # What others see of us.
    "outbound": Check("outbound mail", _W, "", ""),
    "hostname": Check("the hostname", _C, _REFUSED, "sending-names"),
    "hostname_dns": Check("the hostname's address", _C, _REFUSED, "sending-names"),
    "reverse_dns": Check("reverse DNS", _C, _REFUSED, "sending-names"),
    "spf": Check("SPF of the return path", _W, _REFUSED, "sending-names"),
    "return_path": Check(
        "bounces can be received",
        _W,
        "Bounces and complaints are lost, and bad addresses are not suppressed.",
        "sending-names",
    ),
    "address": Check("sending address", _W, _REFUSED, "sending-names"),
    "resolver": Check(
        "name server", _C, "Without DNS, no mail server is found, and domains seem to lose their records.", "dns-away"
    ),
    "port_25": Check("outgoing port 25", _C, "Most clouds close it: no mail leaves.", "port-25-closed"),
    "certificate": Check("the certificate can be used", _C, _TLS, "certificate"),
    "certificate_key": Check("the certificate's key", _C, _TLS, "certificate"),
    "certificate_name": Check("the certificate's name", _C, _TLS, "certificate"),
    "certificate_expiry": Check("the certificate's expiry", _C, _TLS, "certificate"),
    "certificate_chain": Check("the certificate's chain", _C, _TLS, "certificate"),
    "proxy": Check("the proxy is named", _W, "All of its clients count as one address.", "proxy-unnamed"),
    "dashboard": Check("dashboard", _W, "", ""),
    "files": Check("open files", _C, "A part that could not have all its connections does not start.", "files-short"),
}


@dataclass(frozen=True, slots=True)
class DoctorCheck:
    """A check of the table, of a `subject` where there are several: what was found, and what to do if it fails."""

    kind: str
    is_well: bool
    found: str
    advice: str = ""
    subject: str = ""

    @property
    def name(self) -> str:
        return f"{CHECKS[self.kind].title} {self.subject}".rstrip()

    @property
    def severity(self) -> Severity:
        return Severity.OK if self.is_well else CHECKS[self.kind].severity

    @property
    def why(self) -> str:
        return "" if self.is_well else CHECKS[self.kind].why

    @property
    def runbook(self) -> str | None:
        return None if self.is_well else CHECKS[self.kind].runbook


@dataclass(frozen=True, slots=True)
class StreamReplicas:
    """`lagging` are replicas that are disconnected or behind."""

    name: str
    replicas: int
    lagging: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class StreamServer:
    """`stored_bytes_max` is None without a limit."""

    version: tuple[int, int, int]
    streams: Sequence[StreamReplicas]
    stored_bytes: int
    stored_bytes_max: int | None


def expect(kind: str, is_well: bool, found: str, advice: str, subject: str = "") -> DoctorCheck:
    """`advice` is for a check that fails."""
    return DoctorCheck(kind, is_well, found, "" if is_well else advice, subject)


def check_stream(address: str, server: StreamServer, replicas: int) -> Iterator[DoctorCheck]:
    """The checks of the stream's NATS server, from what it reports; `replicas` is the number in the settings."""
    version = ".".join(map(str, server.version))
    at = f"at {address}"
    yield DoctorCheck("stream", True, f"NATS {version}, {len(server.streams)} streams", subject=f"{at} answers")
    oldest = ".".join(map(str, NATS_VERSION_MIN))
    yield expect(
        "stream_version",
        server.version[:2] >= NATS_VERSION_MIN,
        version,
        f"Upgrade nats-server to {oldest} or newer.",
        at,
    )
    few = [stream.name for stream in server.streams if stream.replicas < replicas]
    lagging = [f"{name} of {stream.name}" for stream in server.streams for name in stream.lagging]
    found = f"fewer than {replicas} of {', '.join(few)}" if few else f"disconnected or behind: {', '.join(lagging)}"
    advice = (
        f"Raise them with `nats stream edit NAME --replicas {replicas}`, once there are that many servers."
        if few
        else "Start that server, or see its log; `nats stream report` shows when it has caught up."
    )
    is_well = not few and not lagging
    yield expect("stream_replicas", is_well, "all there" if is_well else found, advice, at)
    most = server.stored_bytes_max
    has_capacity = most is None or server.stored_bytes <= most * (1 - STREAM_CAPACITY_PART_MIN)
    used = f"{server.stored_bytes // 1024**2:,} MiB used" + ("" if most is None else f" of {most // 1024**2:,}")
    yield expect(
        "stream_space",
        has_capacity,
        used,
        "Raise max_file_store of JetStream in nats-server's configuration, or start workers.",
        at,
    )
