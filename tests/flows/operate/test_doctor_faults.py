"""`posthouse doctor` finds each fault that was planted, and nothing else; a healthy installation has none."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
import trustme

from posthouse.clock import DatabaseClock
from posthouse.flows.operate.doctor import Doctor, DoctorSettings
from posthouse.flows.operate.outside_checks import OutsideChecks, OutsideSettings
from posthouse.rules import check_up, database_check, outside_check
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
LONG_AGO: Final = timedelta(days=3)


@dataclass
class Installation:
    """A healthy one, until a test plants its fault."""

    steps: DeliverySteps
    names: Nameserver
    directory: Path
    settings: OutsideSettings
    authority: trustme.CA
    greets: Callable[[str], Awaitable[str]]
    name_servers: dict[str, Resolver]
    others: dict[str, Any] = field(default_factory=dict)
    doctor_settings: dict[str, Any] = field(default_factory=dict)

    async def sql(self, statement: str, *arguments: object) -> None:
        await self.steps.fetch(statement, *arguments)

    def set(self, **changes: Any) -> None:
        self.settings = replace(self.settings, **changes)

    async def check_up(self) -> Sequence[DoctorCheck]:
        outside = OutsideChecks(
            settings=self.settings,
            resolver=Resolver([self.names.endpoint], lookup_seconds_max=2.0),
            name_servers=self.name_servers,
            greeting=self.greets,
        )
        given = context(self.steps.database, DatabaseClock(), sealer=_sealer(self.steps.url))
        return await Doctor(given, DoctorSettings(**self.doctor_settings), outside=outside, **self.others).check_up()


@pytest.fixture
async def installation(steps: DeliverySteps, tmp_path: Path) -> AsyncIterator[Installation]:
    async with Nameserver() as names:
        names.records[".", "NS"] = ["a.root-servers.example."]
        names.records[HOST, "A"] = [IP]
        names.records[REVERSE, "PTR"] = [f"{HOST}."]
        names.records[RETURN_PATH, "TXT"] = [f'"v=spf1 ip4:{IP} -all"']
        names.records[RETURN_PATH, "MX"] = [f"10 {HOST}."]
        authority = trustme.CA()
        made = Installation(
            steps,
            names,
            tmp_path,
            OutsideSettings(
                HOST,
                RETURN_PATH,
                takes_bounces=True,
                port_25_host="mx.example.net",
                certificate_file=str(tmp_path / "certificate.pem"),
                key_file=str(tmp_path / "key.pem"),
                authorities_file=str(tmp_path / "authorities.pem"),
                files={"delivery.sessions_max": 600},
                files_max=1_024,
            ),
            authority,
            _greets,
            {"the only one": Resolver([names.endpoint], lookup_seconds_max=2.0)},
        )
        (tmp_path / "authorities.pem").write_bytes(authority.cert_pem.bytes())
        issue(made)
        made.doctor_settings["backup_max"] = timedelta(hours=26)
        async with steps.database.transaction() as tx:
            for done in (maintenance.BACKUP, maintenance.MAINTENANCE):
                await maintenance.note_run(tx, done, datetime.now(UTC))
        yield made


async def _greets(host: str) -> str:
    return f"220 {host} ESMTP"


def issue(installation: Installation, name: str = HOST, **given: Any) -> None:
    issued = given.pop("by", installation.authority).issue_cert(name, **given)
    installation.directory.joinpath("certificate.pem").write_bytes(
        b"".join(pem.bytes() for pem in issued.cert_chain_pems)
    )
    installation.directory.joinpath("key.pem").write_bytes(issued.private_key_pem.bytes())


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
    for word in words:
        assert word in f"{check.found} {check.advice}"


async def test_a_healthy_installation_is_well(installation: Installation) -> None:
    checks = await installation.check_up()
    assert unwell(checks) == []
    assert {"hostname", "reverse_dns", "spf", "return_path", "resolver", "port_25", "certificate_chain", "files"} <= {
        check.kind for check in checks
    }


def test_every_check_says_why_it_matters_unless_it_only_informs() -> None:
    assert {kind for kind, check in CHECKS.items() if not check.why} == {"outbound", "dashboard"}


def test_every_finding_leads_to_its_runbook() -> None:
    pages = {page.stem for page in RUNBOOKS.glob("*.md")}
    assert [kind for kind, check in CHECKS.items() if check.why and check.runbook not in pages] == []
    assert DoctorCheck("workers", False, "none").runbook == "no-workers"
    assert DoctorCheck("workers", True, "2").runbook is None


async def test_where_mail_is_captured_outbound_connections_are_not_checked(installation: Installation) -> None:
    installation.doctor_settings["captures"] = True
    installation.set(hostname="localhost.localdomain", certificate_file="")
    assert unwell(await installation.check_up()) == []


# The name, DNS, and outbound connections.


@pytest.mark.parametrize("name", ["localhost.localdomain", "localhost", "mail", "mail.local", "mail.lan", "10.0.0.1"])
async def test_a_hostname_that_only_this_machine_knows(installation: Installation, name: str) -> None:
    installation.set(hostname=name, certificate_file="")
    assert_only(await installation.check_up(), "hostname", name, "service.hostname")


async def test_a_hostname_without_an_address(installation: Installation) -> None:
    del installation.names.records[HOST, "A"]
    assert_only(await installation.check_up(), "hostname_dns", "Publish an A record of mail.example.com")


async def test_an_address_without_a_name(installation: Installation) -> None:
    del installation.names.records[REVERSE, "PTR"]
    assert_only(await installation.check_up(), "reverse_dns", "no PTR record")


async def test_an_address_with_another_name_than_the_greeting(installation: Installation) -> None:
    installation.names.records[REVERSE, "PTR"] = ["static-7.hoster.example."]
    assert_only(await installation.check_up(), "reverse_dns", "static-7.hoster.example", HOST)


async def test_spf_that_forbids_the_address(installation: Installation) -> None:
    installation.names.records[RETURN_PATH, "TXT"] = ['"v=spf1 ip4:198.51.100.1 -all"']
    assert_only(await installation.check_up(), "spf", f"Publish ip4:{IP}")


async def test_a_return_path_that_leads_elsewhere(installation: Installation) -> None:
    installation.names.records[RETURN_PATH, "MX"] = ["10 mx.elsewhere.example."]
    assert_only(await installation.check_up(), "return_path", "mx.elsewhere.example", f"MX 10 {HOST}.")


async def test_a_dead_name_server_next_to_a_good_one(installation: Installation) -> None:
    dead = Resolver([("127.0.0.1", free_port())], lookup_seconds_max=1.0)
    installation.name_servers["127.0.0.1 port 53"] = dead
    assert_only(await installation.check_up(), "resolver", "doesn't answer", "service.resolvers")


async def test_no_name_server_at_all(installation: Installation) -> None:
    installation.name_servers = {"dead": Resolver([("127.0.0.1", free_port())], lookup_seconds_max=1.0)}
    assert_only(await installation.check_up(), "resolver", "doesn't answer")


async def test_port_25_that_is_closed(installation: Installation) -> None:
    port = free_port()
    installation.greets = lambda _: greeting("127.0.0.1", port)
    assert_only(await installation.check_up(), "port_25", "mx.example.net", "open outgoing port 25")


async def test_port_25_that_someone_else_answers(installation: Installation) -> None:
    async def intercept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"554 this network sends no mail\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(intercept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    installation.greets = lambda _: greeting("127.0.0.1", port)
    async with server:
        assert_only(await installation.check_up(), "port_25", "554")


async def test_port_25_that_swallows_connections(installation: Installation) -> None:
    gone = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        gone.set()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    installation.greets = lambda _: greeting("127.0.0.1", port, 0.1)
    async with server:
        assert_only(await installation.check_up(), "port_25", "no answer in time")
        await gone.wait()


async def test_a_mail_server_that_greets_is_well() -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mx.example.net ESMTP\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    async with server:
        assert await greeting("127.0.0.1", server.sockets[0].getsockname()[1]) == "220 mx.example.net ESMTP"


# The certificate.


async def test_a_certificate_that_is_missing(installation: Installation) -> None:
    installation.directory.joinpath("certificate.pem").unlink()
    assert_only(await installation.check_up(), "certificate", "No such file", "smtp.tls_certificate_file")


async def test_a_file_that_is_no_certificate(installation: Installation) -> None:
    installation.directory.joinpath("certificate.pem").write_text("not a certificate")
    assert_only(await installation.check_up(), "certificate", "no certificate")


async def test_a_key_that_belongs_to_another_certificate(installation: Installation) -> None:
    other = installation.authority.issue_cert(HOST)
    installation.directory.joinpath("key.pem").write_bytes(other.private_key_pem.bytes())
    assert_only(await installation.check_up(), "certificate_key", "does not belong")


async def test_a_certificate_of_another_name(installation: Installation) -> None:
    issue(installation, "www.example.com")
    assert_only(await installation.check_up(), "certificate_name", "www.example.com", HOST)


async def test_a_certificate_with_a_wildcard_is_well(installation: Installation) -> None:
    issue(installation, "*.example.com")
    assert unwell(await installation.check_up()) == []


async def test_a_certificate_that_has_expired(installation: Installation) -> None:
    now = datetime.now(UTC)
    issue(installation, not_before=now - timedelta(days=90), not_after=now - timedelta(days=1))
    assert_only(await installation.check_up(), "certificate_expiry", "expired", "certbot renew")


async def test_a_certificate_that_expires_soon(installation: Installation) -> None:
    issue(installation, not_after=datetime.now(UTC) + timedelta(days=5))
    assert_only(await installation.check_up(), "certificate_expiry", "valid until")


async def test_a_certificate_without_what_leads_to_its_authority(installation: Installation) -> None:
    between = installation.authority.create_child_ca()
    issue(installation, by=between)
    assert unwell(await installation.check_up()) == []
    issued = between.issue_cert(HOST)
    installation.directory.joinpath("certificate.pem").write_bytes(issued.cert_chain_pems[0].bytes())
    installation.directory.joinpath("key.pem").write_bytes(issued.private_key_pem.bytes())
    assert_only(await installation.check_up(), "certificate_chain", "no authority that is known", "fullchain.pem")


async def test_a_chain_in_which_one_did_not_sign_the_other(installation: Installation) -> None:
    file = installation.directory.joinpath("certificate.pem")
    file.write_bytes(file.read_bytes() + trustme.CA().create_child_ca().cert_pem.bytes())
    assert_only(await installation.check_up(), "certificate_chain", "did not sign")


def test_the_certificates_of_this_check_are_what_openssl_takes(installation: Installation) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(installation.settings.certificate_file, installation.settings.key_file)


def test_a_certificate_that_signed_itself() -> None:
    pem = trustme.CA().cert_pem.bytes()
    kinds = {
        check.kind
        for check in outside_check.check_certificate(pem, b"", HOST, datetime.now(UTC), None)
        if not check.is_well
    }
    assert "certificate_chain" in kinds


async def test_too_few_open_files(installation: Installation) -> None:
    installation.set(files_max=256)
    assert_only(await installation.check_up(), "files", "256", "LimitNOFILE")


# PostgreSQL: what a server says about itself, with one thing wrong.


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("postgres_version", {"version_number": 140_012, "version": "14.12"}),
        ("fsync", {"fsync": "off"}),
        ("full_page_writes", {"full_page_writes": "off"}),
        ("synchronous_commit", {"synchronous_commit": "local"}),
        ("locks", {"locks_per_transaction_max": 64}),
        ("primary", {"is_standby": True}),
        ("autovacuum", {"autovacuum": "off"}),
        ("connections", {"connections": 95, "usable_connections": 97}),
        ("replication", {"synchronous_names": "ANY 1 (b, c)", "synchronous_standbys": 0}),
        ("slots", {"idle_slots": ["old_standby"], "idle_slot_bytes": 5 * 1024**3}),
        ("archive", {"archive_mode": "on", "archive_failed_at": datetime(2026, 1, 2, tzinfo=UTC)}),
        ("transactions", {"oldest_transaction_at": datetime(2026, 1, 1, tzinfo=UTC)}),
    ],
)
async def test_a_fault_of_postgresql(installation: Installation, kind: str, changes: dict[str, Any]) -> None:
    async with installation.steps.database.connection() as connection:
        server: DatabaseServer = await store.server(connection)
    now = datetime.now(UTC)
    assert unwell(list(database_check.check_server(server, now))) == []
    assert_only(list(database_check.check_server(replace(server, **changes), now)), kind)


async def test_a_clock_that_differs_from_the_databases(installation: Installation) -> None:
    installation.others["host_time"] = lambda: datetime.now(UTC) + timedelta(seconds=40)
    assert_only(await installation.check_up(), "host_clock", "+40", "NTP")


async def test_a_transaction_that_someone_left_open_is_read(installation: Installation) -> None:
    database = installation.steps.database
    async with database.transaction() as tx, database.connection() as connection:
        await tx.fetchval("SELECT 1")
        assert (await store.server(connection)).oldest_transaction_at is not None


async def test_missing_partitions(installation: Installation) -> None:
    day = (datetime.now(UTC) + timedelta(days=3)).date()
    async with installation.steps.database.transaction() as tx:
        await tx.execute(f"DROP TABLE {Partition(day, 'recipients').name}")
    assert_only(await installation.check_up(), "partitions", str(day), "posthouse maintenance")


# Waiting work.


async def test_due_mail_and_no_worker(installation: Installation) -> None:
    await installation.sql("DELETE FROM workers")
    await _accepted(installation, timedelta(minutes=1))
    assert_only(await installation.check_up(), "workers", "posthouse run delivery")


async def test_due_mail_that_no_worker_takes(installation: Installation) -> None:
    await _accepted(installation, timedelta(hours=1))
    await installation.sql("INSERT INTO workers VALUES (gen_random_uuid(), now() + interval '1 hour')")
    assert_only(await installation.check_up(), "oldest_due", "posthouse queue top")


async def test_mail_that_an_operator_forgot(installation: Installation) -> None:
    await _accepted(installation, timedelta(0))
    await installation.sql(
        "UPDATE delivery_schedule SET next_at = '9999-01-01', held_by = 'operator', held_since = now() - $1::interval",
        LONG_AGO,
    )
    assert_only(await installation.check_up(), "held", "posthouse queue release")


async def test_mail_that_is_held_since_a_restore(installation: Installation) -> None:
    await _accepted(installation, timedelta(0))
    await installation.sql(
        "UPDATE delivery_schedule SET next_at = '9999-01-01', held_by = 'restore', held_since = now()"
    )
    assert_only(await installation.check_up(), "restored", "posthouse restore show")


async def test_a_pause_that_an_operator_forgot(installation: Installation) -> None:
    await installation.sql("INSERT INTO lane_pauses VALUES ('google', now() - $1::interval, '')", LONG_AGO)
    assert_only(await installation.check_up(), "pauses", "posthouse lane resume google")


async def test_a_domain_whose_records_are_missing(installation: Installation) -> None:
    await installation.sql("UPDATE domains SET missing_since = now()")
    assert_only(await installation.check_up(), "domains", "posthouse domain verify")


async def test_maintenance_that_no_longer_runs(installation: Installation) -> None:
    await installation.sql("UPDATE task_runs SET at = now() - $1::interval WHERE name = 'maintenance'", LONG_AGO)
    assert_only(await installation.check_up(), "maintenance", "posthouse run maintenance")


@pytest.mark.parametrize(
    "statement",
    ["UPDATE task_runs SET at = now() - interval '3 days' WHERE name = 'backup'", "DELETE FROM task_runs"],
    ids=["old", "none"],
)
async def test_a_backup_that_is_old_or_was_never_made(installation: Installation, statement: str) -> None:
    await installation.sql(statement)
    assert_only(await installation.check_up(), "backup", "posthouse backup noted")


async def test_webhooks_that_no_one_sends(installation: Installation) -> None:
    async with installation.steps.database.connection() as connection:
        waiting = await store.waiting(connection, datetime.now(UTC))
    now = datetime.now(UTC)
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


async def _accepted(installation: Installation, due: timedelta) -> None:
    """A recipient that has been due for this long."""
    await installation.sql(
        "INSERT INTO delivery_schedule (account_id, message_id, position, destination, next_at) "
        "SELECT id, gen_random_uuid(), 0, 'example.org', now() - $1::interval FROM accounts LIMIT 1",
        due,
    )


def _sealer(url: str) -> Sealer:
    secrets = service_settings(url).secrets
    return Sealer(secrets.seal_key_bytes, secrets.seal_key_active)
