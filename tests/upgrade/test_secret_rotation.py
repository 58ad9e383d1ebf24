"""All four secrets are replaced under load: pepper, JWT secret, seal key, DKIM keys. No request fails.

As docs/howto/rotate-secrets.md says: the new ones are made known to every process, then used by every process, then the
old ones are removed. Each step restarts all processes, one after the other.
"""

import asyncio
import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import dkim as dkimpy
import pytest

from tests.support import preloaded
from tests.support.audit_report import audit_result, is_failed
from tests.support.bad_input import new_seed
from tests.support.eventually import HANG_SECONDS, eventually
from tests.support.fresh_database import fresh_database
from tests.support.rolling_restart import LONG_LEASES, replace_all, start_second_http
from tests.support.server_process import environment
from tests.support.service import JWT_SECRET, PEPPER, SEAL_KEY, Tenant
from tests.support.smtp_listeners import plain
from tests.support.whole_service import WholeService, start_whole_service

pytestmark = pytest.mark.nightly

PER_SECOND = 20.0
IDLE_SECONDS_MAX = 5 * HANG_SECONDS
STEADY_SECONDS = 5.0
NEW_PEPPER = "the second pepper, thirty-two bytes or more"
NEW_JWT_SECRET = "the second token secret, thirty-two bytes or more"
NEW_SEAL_KEY = base64.b64encode(bytes(range(1, 33))).decode()

KNOWN = {
    "SECRETS__OTHER_PEPPERS": json.dumps({"second": NEW_PEPPER}),
    "SECRETS__OTHER_JWT_SECRETS": json.dumps({"second": NEW_JWT_SECRET}),
    "SECRETS__SEAL_KEYS": json.dumps({"first": SEAL_KEY, "second": NEW_SEAL_KEY}),
}
ACTIVE = {
    "SECRETS__PEPPER": NEW_PEPPER,
    "SECRETS__PEPPER_ID": "second",
    "SECRETS__OTHER_PEPPERS": json.dumps({"first": PEPPER}),
    "SECRETS__JWT_SECRET": NEW_JWT_SECRET,
    "SECRETS__OTHER_JWT_SECRETS": json.dumps({"first": JWT_SECRET}),
    "SECRETS__SEAL_KEYS": json.dumps({"first": SEAL_KEY, "second": NEW_SEAL_KEY}),
    "SECRETS__SEAL_KEY_ACTIVE": "second",
}
REMOVED = {
    **ACTIVE,
    "SECRETS__OTHER_PEPPERS": "{}",
    "SECRETS__OTHER_JWT_SECRETS": "{}",
    "SECRETS__SEAL_KEYS": json.dumps({"second": NEW_SEAL_KEY}),
}


@dataclass(slots=True)
class Before:
    """What was given out before the rotation."""

    tenant: Tenant
    api_key: str
    token: str

    async def check(self, whole_service: WholeService, token_status: int = 200) -> None:
        """The password over both protocols, the API key and the token, at each HTTP process."""
        for machine in whole_service.processes.clients:
            for authorization in (self.tenant.basic, self.api_key):
                key = f"check-{uuid4()}"
                answer = await self.tenant.send(key=key, authorization=authorization, service=machine)
                assert answer.status == 202, answer.raw
            answer = await machine.request("GET", "/v1/account", headers={"Authorization": self.token})
            assert answer.status == token_status, answer.raw
        async with whole_service.listeners.line() as line:
            replies = await line.say("EHLO check.example", plain(self.tenant.username, self.tenant.password))
            assert replies[1].startswith("235 "), replies


@pytest.fixture
def url() -> Iterator[str]:
    with fresh_database("rotation", {"max_connections": "200"}) as (_, url):
        yield url


async def test_all_secrets_are_replaced_under_load_without_a_failed_request(url: str, tmp_path: Path) -> None:
    seed = new_seed()
    async with start_whole_service(url, tmp_path, seed, program=None, **LONG_LEASES) as whole_service:
        processes = whole_service.processes
        await start_second_http(whole_service)
        tenant = whole_service.tenants[0]
        before = Before(tenant, await tenant.key(may_read=True), await tenant.jwt())
        async with whole_service.busy(6, 3, PER_SECOND):
            await before.check(whole_service)
            await asyncio.sleep(STEADY_SECONDS)
            old_zone = await _rotate_dkim(whole_service, tenant)
            for step, settings in {"known": KNOWN, "active": ACTIVE}.items():
                processes.settings |= settings
                await replace_all(whole_service)
                await before.check(whole_service)
                print(step, dict(whole_service.tries), dict(whole_service.answers))
            assert await asyncio.to_thread(whole_service.maintenance) == 0
            listed = await eventually(
                lambda: _secrets(whole_service),
                lambda rows: not rows["pepper", "first"]["used_by"] and not rows["seal key", "first"]["used_by"],
                every=5,
            )
            assert listed["pepper", "first"]["may_be_removed"].startswith("from ")
            assert listed["jwt secret", "first"]["may_be_removed"].startswith("from ")
            assert listed["seal key", "first"]["may_be_removed"] == "yes"
            processes.settings |= REMOVED
            await replace_all(whole_service)
            await before.check(whole_service, token_status=401)
            print("removed", dict(whole_service.tries), dict(whole_service.answers))
        await whole_service.wait_until_idle(IDLE_SECONDS_MAX)
        zone = old_zone | await _zone(whole_service, tenant)
        assert _selectors_that_verify(processes.lines(), tenant, zone) == {
            name.split(b".")[0].decode() for name in zone if b"_domainkey" in name
        }
        # Return paths from before the rotation are verified with its key, which the audit needs.
        processes.settings |= ACTIVE
        report = await audit_result(whole_service)
        print(report["answers"], "tries:", dict(whole_service.tries))
        assert not is_failed(report), report["findings"]
        assert max(map(len, whole_service.tries)) <= 2, "a message needed more than one retry"
        assert await processes.broken_promises() == {}


async def _command(whole_service: WholeService, *words: str) -> Any:
    processes = whole_service.processes
    # The name server and the clients keep running meanwhile.
    done = await asyncio.to_thread(
        preloaded.run,
        *words,
        "--json",
        environment=environment(processes.database_url, **processes.settings),
        directory=processes.directory,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


async def _secrets(whole_service: WholeService) -> dict[tuple[str, str], dict[str, str]]:
    return {(row["secret"], row["id"]): row for row in await _command(whole_service, "secret", "list")}


async def _rotate_dkim(whole_service: WholeService, tenant: Tenant) -> dict[bytes, bytes]:
    """New DKIM keys, published next to the old ones, sign from now on; returns the old records."""
    old = await _zone(whole_service, tenant)
    rotated = await _command(whole_service, "domain", "rotate", tenant.unique, tenant.domain)
    for record in rotated["records"]:
        if record["value"]:
            whole_service.processes.nameserver.zone[record["name"]] = [record["value"]]
    await _command(whole_service, "domain", "verify", tenant.unique, tenant.domain)
    return old


async def _zone(whole_service: WholeService, tenant: Tenant) -> dict[bytes, bytes]:
    (domain,) = await _command(whole_service, "domain", "list", tenant.unique)
    return {f"{record['name']}.".encode(): record["value"].encode() for record in domain["records"] if record["value"]}


def _selectors_that_verify(lines: list[dict[str, Any]], tenant: Tenant, zone: Mapping[bytes, bytes]) -> set[str]:
    """Every message of the tenant has signatures, and each is checked; returns the selectors."""
    found: set[str] = set()
    for line in lines:
        message = base64.b64decode(line["message"])
        if f"@{tenant.domain}".encode() not in message.split(b"\r\n\r\n")[0]:
            continue
        verifier = dkimpy.DKIM(message)
        for number in range(message.count(b"DKIM-Signature:")):
            assert verifier.verify(idx=number, dnsfunc=lambda asked, **_: zone.get(asked)), line["recipient"]
            found.add(verifier.signature_fields[b"s"].decode())
    return found
