"""The check of a domain's DNS records: decides whether it is verified, and lets new keys sign once they are found.

The check on request and the daily check both use this. DNS is queried outside any transaction and within a time limit;
the result is written only if no other check wrote one in the meantime.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from posthouse.flows.shared.context import Context, Flow
from posthouse.rules import domain
from posthouse.rules.credential import Actor
from posthouse.rules.domain import (
    DomainRecords,
    RecordCheck,
    RecordChecks,
    RecordResult,
    TxtAnswer,
    TxtRecord,
    TxtUnknown,
)
from posthouse.rules.endpoint import FurtherType
from posthouse.rules.limits import DOMAIN_CHECK_SECONDS_MAX
from posthouse.store import accounts, audit_log, domains, endpoint_events
from posthouse.store.domains import DomainKeysRow, DomainRow, StoredFinding, VerificationState
from posthouse.store.endpoint_events import AccountEvent
from posthouse.store.postgres import Connection
from posthouse.wire.dns import Resolver


@dataclass(frozen=True, slots=True)
class FoundRecords:
    """What DNS returned for a domain's records, and for the records of keys that wait for them."""

    domain: DomainRow
    signing: RecordChecks
    waiting_keys: DomainKeysRow | None = None
    waiting: RecordChecks | None = None
    advice: tuple[RecordCheck, ...] = ()
    dns_host: str | None = None

    @property
    def is_switch_due(self) -> bool:
        """The RSA key decides: the Ed25519 key signs as well once its own record is found."""
        return self.waiting is not None and self.waiting.dkim.result is RecordResult.FOUND

    @property
    def judgement(self) -> RecordChecks:
        """The selectors of the keys that sign from now on."""
        return self.waiting if self.waiting is not None and self.is_switch_due else self.signing

    @property
    def findings(self) -> tuple[RecordCheck, ...]:
        waiting = () if self.waiting is None else self.waiting.checks[1:]
        return (*self.signing.checks, *waiting, *self.advice)


class DomainCheck(Flow):
    def __init__(self, context: Context, *, resolver: Resolver) -> None:
        super().__init__(context)
        self._resolver = resolver

    async def read_dns(
        self, row: DomainRow, waiting_keys: DomainKeysRow | None, advised: tuple[TxtRecord, TxtRecord] | None = None
    ) -> FoundRecords:
        """Query all records at the same time; also the advised records and the DNS host, if those are given."""
        signing = records_of(row)
        waiting = None if waiting_keys is None else records_of(row, waiting_keys)
        wanted = list(signing.all) + list(() if waiting is None else waiting.all[1:]) + list(advised or ())
        asked_host = _nothing() if advised is None else self._dns_host(row.name)
        texts, host = await asyncio.gather(self._answers(wanted), asked_host)
        answers = dict(zip(wanted, texts, strict=True))
        ownership = answers[signing.ownership]
        return FoundRecords(
            domain=row,
            signing=domain.check_records(signing, *[answers[record] for record in signing.all]),
            waiting_keys=waiting_keys,
            waiting=(
                None
                if waiting is None
                else domain.check_records(waiting, ownership, *[answers[record] for record in waiting.all[1:]])
            ),
            advice=()
            if advised is None
            else domain.check_advised_records(advised, *[answers[record] for record in advised]),
            dns_host=host,
        )

    async def record(self, found: FoundRecords, actor: Actor) -> DomainRow | None:
        """The domain after the check; None if another check was written in the meantime."""
        row, judgement, now = found.domain, found.judgement, self._clock.now()
        was_published = row.ed25519_published and not found.is_switch_due
        verified_at, missing_since = domain.after_check(row.verified_at, row.missing_since, judgement.result, now)
        check = VerificationState(verified_at, missing_since, now, judgement.is_ed25519_published(was_published))
        # Missing records change nothing for a domain that an operator vouched for.
        if row.is_vouched_for and judgement.result is not RecordResult.FOUND:
            published = check.ed25519_published if found.is_switch_due else row.ed25519_published
            check = VerificationState(row.verified_at, None, None, published)
        return await self._write(row, check, found.waiting_keys, found.is_switch_due, actor, now, found)

    async def vouch(self, row: DomainRow, waiting_keys: DomainKeysRow | None, actor: Actor) -> DomainRow | None:
        """Verify the domain without DNS, including its Ed25519 record and waiting keys."""
        now = self._clock.now()
        is_switch_due = waiting_keys is not None
        check = VerificationState(row.verified_at or now, None, None, is_switch_due or row.ed25519_sealed is not None)
        return await self._write(row, check, waiting_keys, is_switch_due, actor, now)

    async def _write(
        self,
        row: DomainRow,
        check: VerificationState,
        waiting_keys: DomainKeysRow | None,
        is_switch_due: bool,
        actor: Actor,
        now: datetime,
        found: FoundRecords | None = None,
    ) -> DomainRow | None:
        findings = None if found is None else domains.findings_text(_kept(found, now))
        host = None if found is None else found.dns_host
        async with self._database.transaction() as tx:
            # The account is locked before its domains, as everywhere, to avoid deadlocks.
            await accounts.lock(tx, row.account_id)
            # The state of the new keys' records is written with these keys.
            of_old_keys = replace(check, ed25519_published=row.ed25519_published) if is_switch_due else check
            if not await domains.record_check(tx, row, of_old_keys, now, findings, host):
                return None
            written = _checked(row, check)
            written = replace(written, findings=findings or row.findings, dns_host=host or row.dns_host)
            if waiting_keys is not None and is_switch_due:
                if not await domains.switch_keys(tx, row, waiting_keys, check.ed25519_published, now):
                    raise RuntimeError("a domain's keys changed under the lock of its account")
                written = _switched(written, waiting_keys)
                detail = {"selector": waiting_keys.selector, "previous_selector": row.selector}
                await self._note(tx, row, actor, "domain.keys_switched", now, detail)
            elif waiting_keys is not None:
                await domains.keys_checked(tx, waiting_keys, now)
            if (row.verified_at is None) != (written.verified_at is None):
                action = "domain.unverified" if written.verified_at is None else "domain.verified"
                await self._note(tx, row, actor, action, now, {"vouched": written.is_vouched_for})
            if (type_ := _event_type(row, written)) is not None:
                event = AccountEvent(row.account_id, type_, {"domain": row.name})
                await endpoint_events.enter_of_account(tx, [event], now)
        return written

    async def _note(
        self, tx: Connection, row: DomainRow, actor: Actor, action: str, now: datetime, detail: audit_log.Detail
    ) -> None:
        await self._audit_log.add_entry(tx, row.account_id, actor, action, row.name, now, detail)

    async def _dns_host(self, name: str) -> str | None:
        """The name servers of the domain's zone; None if DNS gives no answer."""
        try:
            async with asyncio.timeout(DOMAIN_CHECK_SECONDS_MAX):
                for zone in domain.zones(name):
                    name_servers = await self._resolver.name_servers(zone)
                    if name_servers is None:
                        return None
                    if name_servers:
                        return domain.dns_host(name_servers)
        except TimeoutError:
            pass
        return None

    async def _answers(self, wanted: Sequence[TxtRecord]) -> Sequence[TxtAnswer]:
        return await asyncio.gather(*[self._texts(record.name) for record in wanted])

    async def _texts(self, name: str) -> TxtAnswer:
        try:
            async with asyncio.timeout(DOMAIN_CHECK_SECONDS_MAX):
                return await self._resolver.texts(name)
        except TimeoutError:
            return TxtUnknown("the name servers did not answer in time")


async def _nothing() -> None:
    return None


def _event_type(before: DomainRow, after: DomainRow) -> FurtherType | None:
    """The change for the account, if there is one."""
    if after.verified_at is None:
        return None if before.verified_at is None else FurtherType.DOMAIN_LOST
    if before.verified_at is None:
        return FurtherType.DOMAIN_VERIFIED
    is_new = after.missing_since is not None and before.missing_since is None
    return FurtherType.DOMAIN_ENDANGERED if is_new else None


def _kept(found: FoundRecords, now: datetime) -> list[StoredFinding]:
    """The findings of this check, and earlier ones for records that it didn't query."""
    fresh = [
        StoredFinding(
            check.record.purpose, check.record.name, check.record.value, check.result, check.found, check.advice, now
        )
        for check in found.findings
    ]
    names = {finding.name for finding in fresh}
    advised = [
        finding
        for finding in domains.findings_of(found.domain)
        if finding.purpose in domain.ADVISED and finding.name not in names
    ]
    return [*fresh, *advised]


def records_of(row: DomainRow, keys: DomainKeysRow | None = None) -> DomainRecords:
    """The records of a domain with the keys that sign, or with other keys."""
    of: DomainRow | DomainKeysRow = keys or row
    return domain.records(row.name, row.token, of.selector, of.dkim_public, of.ed25519_selector, of.ed25519_public)


def waiting_among(keys: Sequence[DomainKeysRow]) -> DomainKeysRow | None:
    return next((row for row in keys if row.retired_at is None), None)


def _checked(row: DomainRow, check: VerificationState) -> DomainRow:
    return replace(
        row,
        verified_at=check.verified_at,
        missing_since=check.missing_since,
        checked_at=check.checked_at,
        ed25519_published=check.ed25519_published,
    )


def _switched(row: DomainRow, keys: DomainKeysRow) -> DomainRow:
    if keys.dkim_sealed is None:
        raise ValueError("retired keys no longer sign")
    return replace(
        row,
        selector=keys.selector,
        dkim_public=keys.dkim_public,
        dkim_sealed=keys.dkim_sealed,
        ed25519_selector=keys.ed25519_selector,
        ed25519_public=keys.ed25519_public,
        ed25519_sealed=keys.ed25519_sealed,
    )
