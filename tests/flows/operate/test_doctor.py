"""`posthouse doctor` against real databases, healthy and faulty."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from posthouse.clock import DatabaseClock
from posthouse.flows.account.domains import Domains
from posthouse.flows.operate.accounts import Accounts
from posthouse.flows.operate.doctor import Doctor, DoctorCheck, DoctorSettings
from posthouse.flows.operate.sandbox_domain import SandboxDomain
from posthouse.flows.shared.disk_space import DiskSpace, size, volume
from posthouse.randomness import SystemRandomness
from posthouse.rules.credential import OPERATOR
from posthouse.rules.endpoint import Filters
from posthouse.store import endpoints
from posthouse.store.postgres import Database
from posthouse.store.seal import Sealer
from posthouse.wire.dns import Resolver
from tests.flows.account_flows import DEFAULTS
from tests.support.context import context
from tests.support.fresh_database import open_database
from tools.private_postgres import PrivatePostgres, free_port

SEALER = Sealer({"old": b"o" * 32}, "old")


async def check_up(
    database: Database, sealer: Sealer = SEALER, disk_space: DiskSpace | None = None
) -> Sequence[DoctorCheck]:
    return await Doctor(context(database, DatabaseClock(), sealer=sealer), disk_space=disk_space).check_up()


def unwell(checks: Sequence[DoctorCheck]) -> list[DoctorCheck]:
    assert all(bool(check.advice) is not check.is_well for check in checks)
    return [check for check in checks if not check.is_well]


async def test_a_migrated_database_with_its_partitions_is_well(database: Database) -> None:
    checks = await check_up(database)
    assert unwell(checks) == []
    assert len({check.name for check in checks}) == len(checks) == 30


async def test_a_dropped_seal_key_is_named(database: Database) -> None:
    clock, randomness = DatabaseClock(), SystemRandomness()
    accounts = Accounts(context(database, clock, randomness), defaults=DEFAULTS)
    domains = Domains(
        context(database, clock, randomness, sealer=SEALER),
        resolver=Resolver([("127.0.0.1", 1)]),
        return_path="bounces.example",
    )
    account_id = (await accounts.create_account("Acme")).account.id
    await domains.add(account_id, "example.com", OPERATOR)
    await domains.rotate(account_id, "example.com", OPERATOR)
    assert unwell(await check_up(database)) == []
    (check,) = unwell(await check_up(database, Sealer({"new": b"n" * 32}, "new")))
    assert check.found == "4 sealed with 'old'"
    assert "seal_keys" in check.advice


async def test_of_two_keys_that_seal_one_endpoint_the_missing_one_is_named(database: Database) -> None:
    both = {"old": b"o" * 32, "new": b"n" * 32}
    accounts = Accounts(context(database, DatabaseClock()), defaults=DEFAULTS)
    account_id = (await accounts.create_account("Acme")).account.id
    endpoint_id = uuid4()
    secret = Sealer(both, "new").seal(b"secret", endpoints.secret_purpose(account_id, endpoint_id))
    headers = SEALER.seal(b"{}", endpoints.headers_purpose(account_id, endpoint_id))
    filters, now = Filters(types=("email.bounced",)), datetime.now(UTC)
    async with database.transaction() as tx:
        url = "https://example.org"
        await endpoints.save(tx, account_id, endpoint_id, url, filters, True, secret, now, ["X-A"], headers)
    assert unwell(await check_up(database, Sealer(both, "new"))) == []
    (check,) = unwell(await check_up(database, Sealer({"new": b"n" * 32}, "new")))
    assert check.found == "1 sealed with 'old'"


async def test_storage_is_well_while_there_is_space_and_otherwise_says_what_to_do(
    database: Database, tmp_path: Path
) -> None:
    (unwatched,) = [check for check in await check_up(database) if "space in storage" in check.name]
    assert "disk_space.directory" in unwatched.found
    assert (
        unwell(await check_up(database, disk_space=DiskSpace([volume(str(tmp_path), 1), size(database, 2**50)]))) == []
    )
    absent = volume(str(tmp_path / "absent"), 1)
    low, large, lost = unwell(
        await check_up(database, disk_space=DiskSpace([volume(str(tmp_path), 2**60), size(database, 1), absent]))
    )
    assert "free, mail is refused at 1,073,741,824.00 GiB" in low.found
    assert "Free space on the volume" in low.advice
    assert "used, mail is refused at 0.00 GiB" in large.found
    assert "disk_space.database_bytes_max" in large.advice
    assert "No such file" in lost.found
    assert "disk_space.directory" in lost.advice


async def test_a_public_address_without_a_named_proxy_is_not_well(database: Database) -> None:
    url = "https://mail.example.com"
    for proxies, is_well in (("", False), ("10.0.0.1", True)):
        doctor = Doctor(
            context(database, DatabaseClock(), sealer=SEALER), DoctorSettings(public_url=url, trusted_proxies=proxies)
        )
        (check,) = [check for check in await doctor.check_up() if "proxy" in check.name]
        assert check.is_well is is_well
        assert is_well or "http.trusted_proxies" in check.advice


async def test_capture_is_named_and_no_fault(database: Database) -> None:
    for captures, found in ((False, "delivered"), (True, 'no mail leaves: delivery.outbound is "capture"')):
        doctor = Doctor(context(database, DatabaseClock(), sealer=SEALER), DoctorSettings(captures=captures))
        (check,) = [check for check in await doctor.check_up() if check.name == "outbound mail"]
        assert (check.is_well, check.found) == (True, found)


async def test_an_empty_database_wants_its_tables(postgres: PrivatePostgres) -> None:
    postgres.create_database("empty_for_health")
    async with open_database(postgres.url("empty_for_health")) as database:
        (check,) = unwell(await check_up(database))
    assert "posthouse migrate" in check.advice


async def test_a_database_that_is_away_is_the_one_thing_said() -> None:
    async with open_database(f"postgresql://postgres@127.0.0.1:{free_port()}/posthouse") as database:
        (check,) = await check_up(database)
    assert not check.is_well
    assert "database.url" in check.advice


async def test_a_sandbox_domain_that_is_not_verified_is_named(database: Database) -> None:
    clock, randomness = DatabaseClock(), SystemRandomness()
    sandbox = SandboxDomain(
        context(database, clock, randomness, sealer=SEALER), name="try.example.org", account="operations"
    )
    doctor = Doctor(context(database, clock, sealer=SEALER), sandbox_domain=sandbox)
    (check,) = unwell(await doctor.check_up())
    assert (check.name, check.found) == ("sandbox domain", "try.example.org is not a verified domain of operations")
    assert "posthouse domain add 'operations' try.example.org" in check.advice
