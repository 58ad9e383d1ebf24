"""`posthouse doctor` finds each fault that was planted, and nothing else; a healthy installation has none."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
import trustme

from posthouse.clock import DatabaseClock
from posthouse.flows.operate.doctor import Doctor, DoctorSettings
from posthouse.flows.operate.outside_checks import OutsideChecks, OutsideSettings
from posthouse.rules import check_up, database_check, ids, outside_check
from posthouse.rules.check_up import CHECKS, DoctorCheck, Severity, StreamReplicas, StreamServer
from posthouse.rules.database_check import DatabaseServer
from posthouse.store import doctor as store
from posthouse.store import maintenance
from posthouse.store.partitions import Partition
from posthouse.store.seal import Sealer
from posthouse.wire.dns import Resolver
from posthouse.wire.tls import greeting
from tests.support.commands import unknown_commands
from tests.support.context import context
from tests.support.delivery_steps import DeliverySteps
from tests.support.nameserver import Nameserver
from tests.support.service import service_settings
from tools.private_postgres import free_port

RUNBOOKS: Final = Path(__file__).parents[3] / "docs" / "runbooks"

HOST: Final = "mail.example.com"
RETURN_PATH: Final = "bounces.example.com"
IP: Final = "192.0.2.7"
REVERSE: Final = "7.2.0.192.in-addr.arpa"
RECORDS: Final = {
    (".", "NS"): ["a.root-servers.example."],
    (HOST, "A"): [IP],
    (REVERSE, "PTR"): [f"{HOST}."],
    (RETURN_PATH, "TXT"): [f'"v=spf1 ip4:{IP} -all"'],
    (RETURN_PATH, "MX"): [f"10 {HOST}."],
}


async def _greets(host: str) -> str:
    return f"220 {host} ESMTP"


@dataclass
class Outside:
    """What others see of a healthy installation, until a test plants its fault."""

    names: Nameserver
    directory: Path
    authority: trustme.CA
    settings: OutsideSettings
    name_servers: dict[str, Resolver]
    greets: Callable[[str], Awaitable[str]] = _greets

    def set(self, **changes: Any) -> None:
        self.settings = replace(self.settings, **changes)

    def issue(self, name: str = HOST, *, by: trustme.CA | None = None, **given: Any) -> trustme.LeafCert:
        """A certificate, in the files that the settings name."""
        issued = (by or self.authority).issue_cert(name, **given)
        self.certificate.write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
        self.key.write_bytes(issued.private_key_pem.bytes())
        return issued

    @property
    def certificate(self) -> Path:
        return self.directory / "certificate.pem"

    @property
    def key(self) -> Path:
        return self.directory / "key.pem"

    @property
    def checks(self) -> OutsideChecks:
        resolver = Resolver([self.names.endpoint], lookup_seconds_max=2.0)
        return OutsideChecks(
            settings=self.settings, resolver=resolver, name_servers=self.name_servers, greeting=self.greets
        )

    async def check_up(self) -> Sequence[DoctorCheck]:
        return [*await self.checks.outbound(has_addresses=False), *self.checks.machine(datetime.now(UTC))]


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
async def outside(authority: trustme.CA, tmp_path: Path) -> AsyncIterator[Outside]:
    async with Nameserver() as names:
        names.records.update(RECORDS)
        settings = OutsideSettings(
            HOST,
            RETURN_PATH,
            takes_bounces=True,
            port_25_host="mx.example.net",
            certificate_file=str(tmp_path / "certificate.pem"),
            key_file=str(tmp_path / "key.pem"),
            authorities_file=str(tmp_path / "authorities.pem"),
            files={"delivery.sessions_max": 600},
            files_max=1_024,
        )
        name_servers = {"the only one": Resolver([names.endpoint], lookup_seconds_max=2.0)}
        made = Outside(names, tmp_path, authority, settings, name_servers)
        (tmp_path / "authorities.pem").write_bytes(authority.cert_pem.bytes())
        made.issue()
        yield made


@dataclass
class Installation:
    """Its database, healthy until a test plants its fault."""

    steps: DeliverySteps
    others: dict[str, Any] = field(default_factory=dict)

    async def check_up(self, **settings: Any) -> Sequence[DoctorCheck]:
        secrets = service_settings(self.steps.url).secrets
        sealer = Sealer(secrets.seal_key_bytes, secrets.seal_key_active)
        given = context(self.steps.database, DatabaseClock(), sealer=sealer)
        settings = {"backup_max": timedelta(hours=26), **settings}
        return await Doctor(given, DoctorSettings(**settings), **self.others).check_up()


@pytest.fixture
async def installation(steps: DeliverySteps) -> Installation:
    async with steps.database.transaction() as tx:
        for done in (maintenance.BACKUP, maintenance.MAINTENANCE):
            await maintenance.note_run(tx, done, datetime.now(UTC))
    return Installation(steps)


def unwell(checks: Sequence[DoctorCheck]) -> list[DoctorCheck]:
    return [check for check in checks if not check.is_well]


def assert_only(checks: Sequence[DoctorCheck], kind: str, *words: str) -> None:
    """One finding, that says what, why, and what to do, with commands that exist."""
    (check,) = unwell(checks)
    assert (check.kind, check.severity) == (kind, CHECKS[kind].severity)
    assert check.severity is not Severity.OK
    assert check.found
    assert check.why
    assert check.advice
    assert unknown_commands(check.advice) == []
    assert [word for word in words if word not in f"{check.found} {check.advice}"] == []


async def test_a_healthy_installation_is_well(installation: Installation, outside: Outside) -> None:
    installation.others["outside"] = outside.checks
    checks = await installation.check_up()
    assert unwell(checks) == []
    assert {"hostname", "reverse_dns", "spf", "return_path", "resolver", "port_25", "certificate_chain", "files"} <= {
        check.kind for check in checks
    }
    # Where mail is captured, outbound connections are not checked.
    outside.set(hostname="localhost.localdomain", certificate_file="")
    installation.others["outside"] = outside.checks
    assert unwell(await installation.check_up(captures=True)) == []


def test_every_check_says_why_it_matters_unless_it_only_informs() -> None:
    assert {kind for kind, check in CHECKS.items() if not check.why} == {"outbound", "dashboard"}


def test_every_finding_leads_to_its_runbook() -> None:
    pages = {page.stem for page in RUNBOOKS.glob("*.md")}
    assert [kind for kind, check in CHECKS.items() if check.why and check.runbook not in pages] == []
    assert DoctorCheck("workers", False, "none").runbook == "no-workers"
    assert DoctorCheck("workers", True, "2").runbook is None


# The name, DNS, and outbound connections.


@pytest.mark.parametrize("name", ["localhost.localdomain", "localhost", "mail", "mail.local", "mail.lan", "10.0.0.1"])
async def test_a_hostname_that_only_this_machine_knows(outside: Outside, name: str) -> None:
    outside.set(hostname=name, certificate_file="")
    assert_only(await outside.check_up(), "hostname", name, "service.hostname")


@pytest.mark.parametrize(
    ("name", "type_", "values", "kind", "words"),
    [
        (HOST, "A", None, "hostname_dns", ["Publish an A record of mail.example.com"]),
        (REVERSE, "PTR", None, "reverse_dns", ["no PTR record"]),
        (REVERSE, "PTR", ["static-7.hoster.example."], "reverse_dns", ["static-7.hoster.example", HOST]),
        (RETURN_PATH, "TXT", ['"v=spf1 ip4:198.51.100.1 -all"'], "spf", [f"Publish ip4:{IP}"]),
        (RETURN_PATH, "MX", ["10 mx.elsewhere.example."], "return_path", ["mx.elsewhere.example", f"MX 10 {HOST}."]),
    ],
)
async def test_a_record_that_is_missing_or_wrong(
    outside: Outside, name: str, type_: str, values: list[str] | None, kind: str, words: list[str]
) -> None:
    del outside.names.records[name, type_]
    if values:
        outside.names.records[name, type_] = values
    assert_only(await outside.check_up(), kind, *words)


@pytest.mark.parametrize("has_others", [True, False])
async def test_a_dead_name_server(outside: Outside, has_others: bool) -> None:
    if not has_others:
        outside.name_servers.clear()
    outside.name_servers["127.0.0.1 port 53"] = Resolver([("127.0.0.1", free_port())], lookup_seconds_max=1.0)
    assert_only(await outside.check_up(), "resolver", "doesn't answer", "service.resolvers")


@asynccontextmanager
async def mail_server(says: bytes) -> AsyncIterator[int]:
    """The port of a server that says this, or waits for the end of the connection."""
    gone = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(says)
        if not says:
            await reader.read()
        writer.close()
        gone.set()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]
        await gone.wait()


async def test_port_25_that_is_closed(outside: Outside) -> None:
    port = free_port()
    outside.greets = lambda _: greeting("127.0.0.1", port)
    assert_only(await outside.check_up(), "port_25", "mx.example.net", "open outgoing port 25")


@pytest.mark.parametrize(
    ("says", "seconds", "found"),
    [(b"554 this network sends no mail\r\n", 10.0, "554"), (b"", 0.1, "no answer in time")],
    ids=["someone else answers", "connections are swallowed"],
)
async def test_port_25_that_leads_elsewhere(outside: Outside, says: bytes, seconds: float, found: str) -> None:
    async with mail_server(says) as port:
        outside.greets = lambda _: greeting("127.0.0.1", port, seconds)
        assert_only(await outside.check_up(), "port_25", found)


async def test_a_mail_server_that_greets_is_well() -> None:
    async with mail_server(b"220 mx.example.net ESMTP\r\n") as port:
        assert await greeting("127.0.0.1", port) == "220 mx.example.net ESMTP"


# The certificate, and the machine.


def without_the_chain(outside: Outside) -> None:
    """Of a certificate with one between it and its authority, which is well, only the first is left."""
    issued = outside.issue(by=outside.authority.create_child_ca())
    assert unwell(outside.checks.machine(datetime.now(UTC))) == []
    outside.certificate.write_bytes(issued.cert_chain_pems[0].bytes())


def with_a_stranger(outside: Outside) -> None:
    """The second of the chain did not sign the first."""
    stranger = trustme.CA().create_child_ca().cert_pem.bytes()
    outside.certificate.write_bytes(outside.certificate.read_bytes() + stranger)


def with_another_key(outside: Outside) -> None:
    outside.key.write_bytes(outside.authority.issue_cert(HOST).private_key_pem.bytes())


NOW: Final = datetime.now(UTC)
DAY: Final = timedelta(days=1)
MACHINE: Final[Mapping[str, tuple[Callable[[Outside], object], str, list[str]]]] = {
    "no file": (
        lambda it: it.certificate.unlink(),
        "certificate", ["No such file", "smtp.tls_certificate_file"],
    ),
    "no certificate": (lambda it: it.certificate.write_text("x"), "certificate", ["no certificate"]),
    "another's key": (with_another_key, "certificate_key", ["does not belong"]),
    "another name": (lambda it: it.issue("www.example.com"), "certificate_name", ["www.example.com", HOST]),
    "expired": (
        lambda it: it.issue(not_before=NOW - 90 * DAY, not_after=NOW - DAY),
        "certificate_expiry", ["expired", "certbot renew"],
    ),
    "expires soon": (lambda it: it.issue(not_after=NOW + 5 * DAY), "certificate_expiry", ["valid until"]),
    "no chain": (without_the_chain, "certificate_chain", ["no authority that is known", "fullchain.pem"]),
    "a broken chain": (with_a_stranger, "certificate_chain", ["did not sign"]),
    "too few open files": (lambda it: it.set(files_max=256), "files", ["256", "LimitNOFILE"]),
}  # fmt: skip


@pytest.mark.parametrize("fault", MACHINE)
async def test_a_fault_of_the_certificate_or_the_machine(outside: Outside, fault: str) -> None:
    plant, kind, words = MACHINE[fault]
    plant(outside)
    assert_only(outside.checks.machine(datetime.now(UTC)), kind, *words)


async def test_a_certificate_with_a_wildcard_is_well(outside: Outside) -> None:
    outside.issue("*.example.com")
    assert unwell(outside.checks.machine(datetime.now(UTC))) == []


def test_a_certificate_that_signed_itself(authority: trustme.CA) -> None:
    pem = authority.cert_pem.bytes()
    found = unwell(list(outside_check.check_certificate(pem, b"", HOST, datetime.now(UTC), None)))
    assert "certificate_chain" in {check.kind for check in found}


# PostgreSQL: what a server says about itself, with one thing wrong.


SERVER: Final[Mapping[str, dict[str, Any]]] = {
    "postgres_version": {"version_number": 140_012, "version": "14.12"},
    "fsync": {"fsync": "off"},
    "full_page_writes": {"full_page_writes": "off"},
    "synchronous_commit": {"synchronous_commit": "local"},
    "locks": {"locks_per_transaction_max": 64},
    "primary": {"is_standby": True},
    "autovacuum": {"autovacuum": "off"},
    "connections": {"connections": 95, "usable_connections": 97},
    "replication": {"synchronous_names": "ANY 1 (b, c)", "synchronous_standbys": 0},
    "slots": {"idle_slots": ["old_standby"], "idle_slot_bytes": 5 * 1024**3},
    "archive": {"archive_mode": "on", "archive_failed_at": datetime(2026, 1, 2, tzinfo=UTC)},
    "transactions": {"oldest_transaction_at": datetime(2026, 1, 1, tzinfo=UTC)},
}


async def test_each_fault_of_postgresql(steps: DeliverySteps) -> None:
    async with steps.database.connection() as connection:
        server: DatabaseServer = await store.server(connection)
    now = datetime.now(UTC)
    assert unwell(list(database_check.check_server(server, now))) == []
    for kind, changes in SERVER.items():
        assert_only(list(database_check.check_server(replace(server, **changes), now)), kind)


async def test_a_clock_that_differs_from_the_databases(installation: Installation) -> None:
    installation.others["host_time"] = lambda: datetime.now(UTC) + timedelta(seconds=40)
    assert_only(await installation.check_up(), "host_clock", "+40", "NTP")


async def test_a_transaction_that_someone_left_open_is_read(steps: DeliverySteps) -> None:
    async with steps.database.transaction() as tx, steps.database.connection() as connection:
        await tx.fetchval("SELECT 1")
        assert (await store.server(connection)).oldest_transaction_at is not None


async def test_missing_partitions(installation: Installation) -> None:
    day = (datetime.now(UTC) + timedelta(days=3)).date()
    async with installation.steps.database.transaction() as tx:
        await tx.execute(f"DROP TABLE {Partition(day, 'recipients').name}")
    assert_only(await installation.check_up(), "partitions", str(day), "posthouse maintenance")


# Waiting work.

# A recipient that has been due for this long.
DUE: Final = """
INSERT INTO delivery_schedule (account_id, message_id, position, destination, next_at)
SELECT id, gen_random_uuid(), 0, 'example.org', now() - interval '{}' FROM accounts LIMIT 1
"""
HELD: Final = "UPDATE delivery_schedule SET next_at = '9999-01-01', held_by = '{}', held_since = now() - interval '{}'"
WORK: Final = {
    "due mail and no worker": ("workers", "posthouse run delivery", [DUE.format("1 minute"), "DELETE FROM workers"]),
    "due mail that no worker takes": (
        "oldest_due", "posthouse queue top",
        [DUE.format("1 hour"), "INSERT INTO workers VALUES (gen_random_uuid(), now() + interval '1 hour')"],
    ),
    "mail that an operator forgot": (
        "held", "posthouse queue release",
        [DUE.format("0"), HELD.format("operator", "3 days")],
    ),
    "mail held since a restore": ("restored", "posthouse restore show", [DUE.format("0"), HELD.format("restore", "0")]),
    "a pause that an operator forgot": (
        "pauses", "posthouse lane resume google",
        ["INSERT INTO lane_pauses VALUES ('google', now() - interval '3 days', '')"],
    ),
    "missing records": ("domains", "posthouse domain verify", ["UPDATE domains SET missing_since = now()"]),
    "maintenance no longer runs": (
        "maintenance", "posthouse run maintenance",
        ["UPDATE task_runs SET at = now() - interval '3 days' WHERE name = 'maintenance'"],
    ),
    "an old backup": (
        "backup", "posthouse backup noted",
        ["UPDATE task_runs SET at = now() - interval '3 days' WHERE name = 'backup'"],
    ),
    "no backup": ("backup", "posthouse backup noted", ["DELETE FROM task_runs"]),
}  # fmt: skip


@pytest.mark.parametrize("fault", WORK)
async def test_work_that_waits_or_was_forgotten(installation: Installation, fault: str) -> None:
    kind, advice, statements = WORK[fault]
    for statement in statements:
        await installation.steps.fetch(statement)
    assert_only(await installation.check_up(), kind, advice)


async def test_a_member_of_the_sending_account_who_is_not_an_operator(installation: Installation) -> None:
    ((account_id, name),) = await installation.steps.fetch("SELECT id, name FROM accounts LIMIT 1")
    for statement in (
        "INSERT INTO users VALUES (gen_random_uuid(), 'ada@example.com', '', now())",
        f"INSERT INTO memberships SELECT '{account_id}', id, 'viewer', now() FROM users",
    ):
        await installation.steps.fetch(statement)
    for named in (name, ids.text(ids.ACCOUNT, account_id)):
        checks = await installation.check_up(sender_account=named)
        assert_only(checks, "sender_members", "ada@example.com", "posthouse user remove")
    # There is no such account, or it sends nothing outside.
    assert unwell(await installation.check_up(sender_account="other")) == []
    assert unwell(await installation.check_up(sender_account=name, captures=True)) == []
    await installation.steps.fetch("UPDATE users SET operator_since = now()")
    assert unwell(await installation.check_up(sender_account=name)) == []


async def test_webhooks_that_no_one_sends(steps: DeliverySteps) -> None:
    now = datetime.now(UTC)
    async with steps.database.connection() as connection:
        waiting = await store.waiting(connection, now)
    late = replace(waiting, oldest_webhook_at=now - timedelta(hours=1))
    assert_only(list(database_check.check_waiting(late, now, None)), "oldest_webhook", "posthouse run notification")


# The stream.

GOOD: Final = StreamServer((2, 11, 4), [StreamReplicas("tickets", 3)], 10 * 1024**2, 1024**3)


@pytest.mark.parametrize(
    ("kind", "server"),
    [
        ("stream_version", replace(GOOD, version=(2, 9, 25))),
        ("stream_replicas", replace(GOOD, streams=[StreamReplicas("tickets", 1)])),
        ("stream_replicas", replace(GOOD, streams=[StreamReplicas("tickets", 3, ["n2"])])),
        ("stream_space", replace(GOOD, stored_bytes=1000 * 1024**2)),
    ],
    ids=["old version", "too few replicas", "a replica is away", "full"],
)
def test_a_fault_of_the_stream(kind: str, server: StreamServer) -> None:
    assert unwell(list(check_up.check_stream("nats:4222", GOOD, 3))) == []
    assert_only(list(check_up.check_stream("nats:4222", server, 3)), kind)


async def test_a_server_of_the_stream_that_does_not_answer(installation: Installation) -> None:
    async def away() -> StreamServer:
        raise ConnectionError("connection refused")

    installation.others["stream_probes"] = {"127.0.0.1:4222": away}
    assert_only(await installation.check_up(), "stream", "connection refused", "nats-server")
