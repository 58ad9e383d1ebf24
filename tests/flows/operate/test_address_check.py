"""The check of sending addresses, over a real name server."""

from collections.abc import AsyncIterator
from ipaddress import ip_address

import pytest

from posthouse.flows.operate.address_check import CHECKED_EVERY, AddressCheck, AddressFindings, spf_allows
from posthouse.flows.operate.doctor import Doctor
from posthouse.flows.operate.sending_addresses import SendingAddresses
from posthouse.store.postgres import Database
from posthouse.store.seal import Sealer
from posthouse.wire.dns import Resolver
from tests.support.clock import SettableClock
from tests.support.context import context
from tests.support.nameserver import SERVFAIL, Nameserver

IP, NAME, REVERSE = "192.0.2.7", "mta7.example.com", "7.2.0.192.in-addr.arpa"
RETURN_PATH = "bounces.example.com"
LIST, OTHER_LIST = "list.example", "other.example"


@pytest.fixture
async def names() -> AsyncIterator[Nameserver]:
    async with Nameserver() as names:
        names.records[REVERSE, "PTR"] = [f"{NAME}."]
        names.records[NAME, "A"] = [IP]
        names.zone[RETURN_PATH] = [f"v=spf1 ip4:{IP} -all"]
        yield names


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock()


@pytest.fixture
async def check(database: Database, names: Nameserver, clock: SettableClock) -> AddressCheck:
    addresses = SendingAddresses(context(database, clock))
    await addresses.add(IP, NAME)
    await addresses.add("192.0.2.8", "retired.example.com")
    await addresses.retire("192.0.2.8")
    return AddressCheck(
        context(database, clock),
        resolver=Resolver([names.endpoint], lookup_seconds_max=1.0, monotonic=clock.monotonic),
        return_path=RETURN_PATH,
        blocklists=[LIST, OTHER_LIST],
    )


async def found(check: AddressCheck) -> AddressFindings:
    (only,) = await check.check_all()
    return only


async def test_an_address_with_its_names_and_spf_is_well(check: AddressCheck) -> None:
    well = await found(check)
    assert (well.findings, well.unknown, dict(well.listings)) == ((), (), {LIST: None, OTHER_LIST: None})


async def test_what_is_wrong_is_named_with_what_to_do(check: AddressCheck, names: Nameserver) -> None:
    names.records[REVERSE, "PTR"] = ["other.example.com."]
    names.zone[RETURN_PATH] = ["v=spf1 ip4:192.0.2.1 -all"]
    names.records[f"7.2.0.192.{LIST}", "A"] = ["127.0.0.2"]
    wrong = await found(check)
    assert [finding.split(":")[0] for finding in wrong.findings] == [
        f"The PTR record of {IP} names other.example.com, and mail from it greets with {NAME}",
        f"SPF of the return path does not allow {IP}",
        f"{LIST} lists {IP}",
    ]


async def test_without_an_answer_nothing_is_wrong(check: AddressCheck, names: Nameserver) -> None:
    for name in (REVERSE, RETURN_PATH, f"7.2.0.192.{LIST}"):
        names.script[name] = SERVFAIL
    # The list says that it refuses to answer.
    names.records[f"7.2.0.192.{OTHER_LIST}", "A"] = ["127.255.255.254"]
    silent = await found(check)
    assert (silent.findings, dict(silent.listings), len(silent.unknown)) == ((), {}, 4)


async def stored(database: Database) -> list[tuple[str, str]]:
    async with database.connection() as connection:
        rows = await connection.fetch("SELECT zone, answer, since FROM blocklist_entries ORDER BY zone")
        return [(row["zone"], row["answer"]) for row in rows]


async def test_maintenance_checks_each_hour_and_stores_listings(
    check: AddressCheck, names: Nameserver, clock: SettableClock, database: Database
) -> None:
    listed = f"7.2.0.192.{LIST}"
    names.records[listed, "A"] = ["127.0.0.2"]
    assert await check.run() == 1
    assert await check.run() == 0
    assert await stored(database) == [(LIST, "127.0.0.2")]
    addresses = SendingAddresses(context(database, clock))
    row = (await addresses.list_addresses())[0]
    assert (row.listed_by, row.checked_at) == ((LIST,), clock.now())
    assert row.findings[0].startswith(f"{LIST} lists {IP}")
    # A list that does not answer has delisted nothing.
    names.script[listed] = SERVFAIL
    clock.advance(seconds=CHECKED_EVERY.total_seconds())
    assert await check.run() == 1
    assert await stored(database) == [(LIST, "127.0.0.2")]
    del names.script[listed], names.records[listed, "A"]
    clock.advance(seconds=CHECKED_EVERY.total_seconds())
    assert await check.run() == 1
    assert await stored(database) == []
    assert (await addresses.list_addresses())[0].findings == ()


async def test_a_list_that_is_no_longer_queried_lists_nothing(
    check: AddressCheck, names: Nameserver, clock: SettableClock, database: Database
) -> None:
    names.records[f"7.2.0.192.{LIST}", "A"] = ["127.0.0.2"]
    await check.run()
    clock.advance(seconds=CHECKED_EVERY.total_seconds())
    resolver = Resolver([names.endpoint], lookup_seconds_max=1.0)
    without = AddressCheck(context(database, clock), resolver=resolver, return_path=RETURN_PATH)
    await without.run()
    assert await stored(database) == []


async def test_doctor_checks_each_address(
    check: AddressCheck, names: Nameserver, clock: SettableClock, database: Database
) -> None:
    doctor = Doctor(context(database, clock, sealer=Sealer({"1": bytes(32)}, "1")), address_check=check)

    async def about_address() -> tuple[bool, str, str]:
        (only,) = [each for each in await doctor.check_up() if each.name == f"sending address {IP}"]
        return only.is_well, only.found, only.advice

    assert await about_address() == (True, f"{NAME}; PTR, SPF and 2 lists", "")
    del names.records[REVERSE, "PTR"]
    is_well, _, advice = await about_address()
    assert not is_well
    assert "no PTR record" in advice


SPF = {
    "plain.example": "v=spf1 ip4:192.0.2.0/24 -all",
    "other.example": "v=spf1 ip4:198.51.100.0/24 -all",
    "include.example": "v=spf1 include:other.example include:plain.example -all",
    "excluded.example": "v=spf1 -ip4:192.0.2.7 include:plain.example -all",
    "redirect.example": "v=spf1 redirect=plain.example",
    "a.example": "v=spf1 a -all",
    "mx.example": "v=spf1 mx:mail.example -all",
    "open.example": "v=spf1 ?all",
    "empty.example": "v=spf1",
    "macro.example": "v=spf1 exists:%{i}.example.com -all",
    "macro-and-ip.example": "v=spf1 exists:%{i}.example.com ip4:192.0.2.7 -all",
    "loop.example": "v=spf1 include:loop.example -all",
    "void.example": "v=spf1 ipv4:192.0.2.7 -all",
    "unanswered.example": "v=spf1 include:silent.example -all",
}


SPF_ANSWERS = {
    **dict.fromkeys(("plain", "include", "redirect", "a", "mx", "macro-and-ip"), (True, "")),
    **dict.fromkeys(("other", "excluded", "open", "empty"), (False, "does not include it")),
    "macro": (None, "depends on the message"),
    "loop": (False, "more than 10 look-ups"),
    "void": (False, "no receiver understands"),
    "unanswered": (None, "could not answer"),
    "absent": (False, "has no SPF record"),
    "twice": (False, "several SPF records"),
}


async def test_whether_spf_allows_an_address() -> None:
    async with Nameserver({name: [text] for name, text in SPF.items()}, {"silent.example": SERVFAIL}) as names:
        names.zone["twice.example"] = ["v=spf1 -all", "v=spf1 ip4:192.0.2.7"]
        names.records["a.example", "A"] = [IP]
        names.records["mail.example", "MX"] = ["10 host.example."]
        names.records["host.example", "A"] = [IP]
        resolver = Resolver([names.endpoint], lookup_seconds_max=1.0)
        for name, (is_allowed, reason) in SPF_ANSWERS.items():
            answer = await spf_allows(resolver, ip_address(IP), f"{name}.example")
            assert answer.is_allowed is is_allowed, name
            assert reason in answer.reason, name
