"""An account's domains, the DNS records that verify them, and the keys that sign for them."""

import base64
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from posthouse.flows.shared.background_tasks import BackgroundTasks, in_low_priority
from posthouse.flows.shared.context import Context, Flow, new_id
from posthouse.flows.shared.domain_check import DomainCheck, FoundRecords, records_of, waiting_among
from posthouse.flows.shared.page import Page, id_position, page_of
from posthouse.flows.shared.shares import TURN_SECONDS_MAX, FairShare, Rates, WaitedShare, busy
from posthouse.mail import dkim
from posthouse.mail.dkim import KeyPair
from posthouse.rules import domain, ids, input_checks, limits
from posthouse.rules.credential import OPERATOR, Actor
from posthouse.rules.domain import DomainRecords, RecordCheck, RecordChecks, RecordPurpose, RecordResult, TxtRecord
from posthouse.rules.ids import AccountId, DomainId
from posthouse.rules.rate_limit import Rate
from posthouse.rules.refusal import Code, Refusal, invalid
from posthouse.store import accounts, domains
from posthouse.store.domains import DomainKeysRow, StoredFinding
from posthouse.store.domains import DomainRow as DomainRow
from posthouse.store.postgres import Connection
from posthouse.wire.dns import Resolver

IN_PROGRESS_MAX: Final = 32
AHEAD: Final = 4
_BUSY: Final = busy("Many keys are being generated")
LIST_MAX: Final = limits.DOMAINS_MAX
_KEY_RATE: Final = Rate(limits.DOMAIN_KEYS_PER_MINUTE / 60, limits.DOMAIN_KEYS_BURST)
# Each check keeps a few sockets open for seconds if name servers are slow.
CHECKS_MAX: Final = 50
_TOKEN_BYTES: Final = 20
_SELECTOR_BYTES: Final = 5
_ASKED_EVERY: Final = timedelta(seconds=limits.DOMAIN_ASKED_SECONDS)


class DkimKeys:
    """Generates DKIM key pairs. An RSA key takes a good part of a second of a core.

    One is generated at a time, and accounts take turns. A few RSA keys are generated ahead, so that a request seldom
    waits; this begins with the first request, so a process that needs no keys does nothing.
    """

    def __init__(self, *, ahead: int = 0, make: Callable[[], KeyPair] = dkim.new_key_pair) -> None:
        """`ahead` is how many RSA keys are kept ready."""
        self._ahead = ahead
        self._make = make
        self._in_progress: FairShare[AccountId] = FairShare(IN_PROGRESS_MAX)
        # None is the holder of keys that are generated ahead.
        self._turns: WaitedShare[AccountId | None] = WaitedShare(1, wait_seconds_max=TURN_SECONDS_MAX, refusal=_BUSY)
        self._ready: deque[KeyPair] = deque()
        self._tasks = BackgroundTasks()
        self._is_refilling = False

    async def new_pairs(self, account_id: AccountId) -> tuple[KeyPair, KeyPair]:
        """An RSA and an Ed25519 key pair."""
        with self._in_progress.taking(account_id, _BUSY):
            rsa = self._ready.popleft() if self._ready else await self._made(account_id)
        self._refill()
        return rsa, dkim.new_ed25519_key_pair()

    async def _made(self, holder: AccountId | None) -> KeyPair:
        async with self._turns.turn(holder):
            return await in_low_priority(self._make)

    def _refill(self) -> None:
        if not self._is_refilling and len(self._ready) < self._ahead:
            self._is_refilling = True
            self._tasks.spawn(self._make_ahead())

    async def _make_ahead(self) -> None:
        try:
            while len(self._ready) < self._ahead:
                self._ready.append(await self._made(None))
        finally:
            self._is_refilling = False


class KeyStage(StrEnum):
    """The keys to which a record belongs; records without a key are ACTIVE."""

    ACTIVE = "active"
    PENDING = "pending"
    PREVIOUS = "previous"


@dataclass(frozen=True, slots=True)
class ShownRecord:
    """A record as it is shown; `finding` is what the last check found, None before the first."""

    record: TxtRecord
    stage: KeyStage
    advice: str
    finding: RecordCheck | None = None
    checked_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class DomainView:
    """A domain with the records to publish, and the findings of the check if one was just made."""

    domain: DomainRow
    keys: Sequence[DomainKeysRow]
    advised: tuple[TxtRecord, TxtRecord]
    findings: Mapping[str, RecordCheck] = field(default_factory=dict)

    @property
    def records(self) -> DomainRecords:
        """The records of the keys that sign."""
        return records_of(self.domain)

    @property
    def waiting(self) -> DomainKeysRow | None:
        return waiting_among(self.keys)

    @property
    def lines(self) -> Sequence[ShownRecord]:
        """For a shared domain there is nothing to publish."""
        if self.domain.is_shared:
            return []
        shown = [self._line(record, KeyStage.ACTIVE) for record in self.records.all]
        for keys in self.keys:
            of_keys = records_of(self.domain, keys).all[1:]
            shown += [self._line(record, KeyStage.PENDING, keys.retired_at) for record in of_keys]
        return [*shown, *[self._line(record, KeyStage.ACTIVE) for record in self.advised]]

    def _line(self, record: TxtRecord, stage: KeyStage, retired_at: datetime | None = None) -> ShownRecord:
        stored = self._stored(record)
        finding = self.findings.get(record.name) or _check_of(record, stored)
        checked_at = None if stored is None else stored.at
        if retired_at is not None:
            until = domain.records_kept_until(retired_at)
            advice = (
                f"Leave it in DNS until {until:%Y-%m-%d %H:%M} UTC, for mail that was signed with it and is still on "
                "its way; then remove it."
            )
            return ShownRecord(record, KeyStage.PREVIOUS, advice, finding, checked_at)
        advice = domain.advice_before_check(record) if finding is None else finding.advice
        return ShownRecord(record, stage, advice, finding, checked_at)

    def _stored(self, record: TxtRecord) -> StoredFinding | None:
        return next((found for found in domains.findings_of(self.domain) if _is_of(found, record)), None)


@dataclass(frozen=True, slots=True)
class Verification:
    """The domain after the check; not judged if an operator vouched for it."""

    view: DomainView
    judgement: RecordChecks | None

    @property
    def domain(self) -> DomainRow:
        return self.view.domain


class Domains(Flow):
    def __init__(
        self, context: Context, *, resolver: Resolver, return_path: str, dkim_keys: DkimKeys | None = None
    ) -> None:
        """`return_path` is the domain to which bounces are addressed."""
        super().__init__(context)
        self._return_path = return_path
        self._domain_check = DomainCheck(context, resolver=resolver)
        self._dkim_keys = dkim_keys or DkimKeys()
        self._key_rates: Rates[AccountId] = Rates()
        self._checks: FairShare[None] = FairShare(CHECKS_MAX, holder_max=CHECKS_MAX)

    async def add(self, account_id: AccountId, given: str, actor: Actor) -> DomainView:
        """Registers the domain, unverified; returns the DNS records to publish."""
        name = input_checks.domain_name(given)
        async with self._database.connection() as connection:
            await _require_capacity(connection, account_id, name)
        rsa, ed25519 = await self._new_pairs(account_id, actor)
        now = self._clock.now()
        domain_id, selector = DomainId(new_id(self._randomness, now)), self._new_selector()
        row = DomainRow(
            account_id=account_id,
            id=domain_id,
            name=name,
            token=_base32(self._randomness.bytes(_TOKEN_BYTES)),
            selector=selector,
            dkim_public=rsa.public,
            created_at=now,
            verified_at=None,
            checked_at=None,
            missing_since=None,
            dkim_sealed=self._keys.sealer.seal(rsa.private_der, domains.dkim_purpose(account_id, domain_id)),
            ed25519_selector=domain.ed25519_selector(selector),
            ed25519_public=ed25519.public,
            ed25519_sealed=self._keys.sealer.seal(ed25519.private_der, domains.ed25519_purpose(account_id, domain_id)),
        )
        if len(records_of(row).dkim.name) > domain.NAME_CHARACTERS_MAX:
            raise invalid("`name` is too long: the name of its DKIM record would not fit into DNS.")
        async with self._database.transaction() as tx:
            await accounts.lock(tx, account_id)
            await _require_capacity(tx, account_id, name)
            if not await domains.insert(tx, row, now):
                raise _already_added(name)
            await self._audit_log.add_entry(tx, account_id, actor, "domain.added", name, now)
        return self._view(row, ())

    async def all(self, account_id: AccountId) -> Sequence[DomainView]:
        """The account's domains, by name."""
        async with self._database.connection() as connection:
            rows = await domains.list_of_account(connection, account_id, LIST_MAX)
            keys = await domains.keys(connection, account_id, [row.id for row in rows])
        return [self._view(row, keys[row.id]) for row in rows]

    async def page(self, account_id: AccountId, limit: int, cursor: str | None = None) -> Page[DomainRow]:
        before = None if cursor is None else id_position(ids.DOMAIN, cursor)
        async with self._database.connection() as connection:
            rows = await domains.page(connection, account_id, before, limit + 1)
        return page_of(rows, limit, lambda row: ids.text(ids.DOMAIN, row.id))

    async def get(self, account_id: AccountId, given: str) -> DomainView:
        async with self._database.connection() as connection:
            row, keys = await _found(connection, account_id, given)
        return self._view(row, keys)

    async def verify(self, account_id: AccountId, given: str, actor: Actor, *, vouched: bool = False) -> Verification:
        """Check the records in DNS; if an operator vouches for the domain, DNS is not queried."""
        async with self._database.transaction() as tx:
            row, keys = await _found(tx, account_id, given)
            _require_own(row)
            if actor != OPERATOR:
                await self._take_turn(tx, row)
        if vouched:
            found = None
            written = await self._domain_check.vouch(row, waiting_among(keys), actor)
        else:
            found = await self._read_dns(row, waiting_among(keys))
            written = await self._domain_check.record(found, actor)
        if written is None:
            raise Refusal(Code.CONFLICT, f"{row.name} was checked by someone else at the same time: try again.")
        async with self._database.connection() as connection:
            keys = (await domains.keys(connection, account_id, [row.id]))[row.id]
        return Verification(self._view(written, keys, found), None if found is None else found.judgement)

    async def rotate(self, account_id: AccountId, given: str, actor: Actor) -> DomainView:
        """Create new keys, which sign once the RSA key's record is found; until then the current keys sign."""
        async with self._database.connection() as connection:
            row, keys = await _found(connection, account_id, given)
        _require_own(row)
        _require_no_rotation(row, keys)
        rsa, ed25519 = await self._new_pairs(account_id, actor)
        now = self._clock.now()
        selector = self._new_selector()
        waiting = DomainKeysRow(
            account_id=account_id,
            domain_id=row.id,
            selector=selector,
            dkim_public=rsa.public,
            ed25519_selector=domain.ed25519_selector(selector),
            ed25519_public=ed25519.public,
            created_at=now,
            checked_at=now,
            dkim_sealed=self._keys.sealer.seal(rsa.private_der, domains.dkim_purpose(account_id, row.id)),
            ed25519_sealed=self._keys.sealer.seal(ed25519.private_der, domains.ed25519_purpose(account_id, row.id)),
        )
        async with self._database.transaction() as tx:
            await accounts.lock(tx, account_id)
            again, keys = await _found(tx, account_id, given)
            if again.id != row.id:
                raise Refusal(Code.CONFLICT, f"{row.name} was removed and added again in the meantime: try again.")
            _require_no_rotation(again, keys)
            await domains.add_keys(tx, waiting)
            detail = {"selector": selector, "previous_selector": again.selector}
            await self._audit_log.add_entry(tx, account_id, actor, "domain.rotation_started", row.name, now, detail)
        return self._view(again, [waiting, *keys])

    async def remove(self, account_id: AccountId, given: str, actor: Actor) -> None:
        """Remove the domain and its keys immediately; mail from it that is still queued is sent unsigned."""
        name = _read_name(given)
        now = self._clock.now()
        async with self._database.transaction() as tx:
            await accounts.lock(tx, account_id)
            row = await domains.find(tx, account_id, name)
            if row is not None:
                _require_own(row)
            if not await domains.delete(tx, account_id, name, now):
                raise _unknown(given)
            await self._audit_log.add_entry(tx, account_id, actor, "domain.removed", name, now)

    async def _take_turn(self, tx: Connection, row: DomainRow) -> None:
        now = self._clock.now()
        since = now - _ASKED_EVERY
        if not await domains.take_turn(tx, row, now, since):
            raise Refusal(
                Code.RATE_LIMITED,
                f"{row.name} was checked a moment ago: wait {limits.DOMAIN_ASKED_SECONDS} s between two checks. "
                "A new record can take an hour to become visible.",
                limits.DOMAIN_ASKED_SECONDS,
            )
        if await domains.asked_since(tx, row.account_id, since) > limits.DOMAINS_ASKED_MAX:
            raise Refusal(
                Code.RATE_LIMITED,
                f"{limits.DOMAINS_ASKED_MAX} domains of the account were checked within "
                f"{limits.DOMAIN_ASKED_SECONDS} s: wait a moment before the next.",
                limits.DOMAIN_ASKED_SECONDS,
            )

    async def _read_dns(self, row: DomainRow, waiting: DomainKeysRow | None) -> FoundRecords:
        refusal = Refusal(Code.TEMPORARY_FAILURE, "Many domains are being checked now: try again.", 2)
        with self._checks.taking(None, refusal):
            return await self._domain_check.read_dns(row, waiting, domain.advised_records(row.name, self._return_path))

    async def _new_pairs(self, account_id: AccountId, actor: Actor) -> tuple[KeyPair, KeyPair]:
        if actor != OPERATOR:
            allowed = (
                f"An account may add domains and rotate their keys {limits.DOMAIN_KEYS_PER_MINUTE} times a minute and "
                f"{limits.DOMAIN_KEYS_BURST} times in a burst"
            )
            self._key_rates.require(account_id, _KEY_RATE, self._clock.now(), allowed)
        return await self._dkim_keys.new_pairs(account_id)

    def _view(self, row: DomainRow, keys: Sequence[DomainKeysRow], found: FoundRecords | None = None) -> DomainView:
        findings = {} if found is None else {finding.record.name: finding for finding in found.findings}
        now = self._clock.now()
        # Records that may be removed from DNS are not shown, even before maintenance deletes them.
        shown = [row for row in keys if row.retired_at is None or now < domain.records_kept_until(row.retired_at)]
        return DomainView(row, shown, domain.advised_records(row.name, self._return_path), findings)

    def _new_selector(self) -> str:
        return domain.SELECTOR_PREFIX + _base32(self._randomness.bytes(_SELECTOR_BYTES))


def results_of(row: DomainRow) -> list[tuple[RecordPurpose, RecordResult]]:
    """What the last check found for each record, except those of keys that wait."""
    records = records_of(row).all
    return [
        (RecordPurpose(found.purpose), RecordResult(found.result))
        for found in domains.findings_of(row)
        if found.purpose in domain.ADVISED or any(_is_of(found, record) for record in records)
    ]


def _is_of(found: StoredFinding, record: TxtRecord) -> bool:
    """Whether the finding is about this record, and not about an earlier one with the same name."""
    return (found.name, found.wanted) == (record.name, record.value)


def _check_of(record: TxtRecord, stored: StoredFinding | None) -> RecordCheck | None:
    return None if stored is None else RecordCheck(record, RecordResult(stored.result), stored.found, stored.advice)


async def _found(
    connection: Connection, account_id: AccountId, given: str
) -> tuple[DomainRow, Sequence[DomainKeysRow]]:
    row = await domains.find(connection, account_id, _read_name(given))
    if row is None:
        raise _unknown(given)
    return row, (await domains.keys(connection, account_id, [row.id]))[row.id]


async def _require_capacity(connection: Connection, account_id: AccountId, name: str) -> None:
    if await domains.find(connection, account_id, name) is not None:
        raise _already_added(name)
    if await domains.count(connection, account_id) >= limits.DOMAINS_MAX:
        raise Refusal(Code.CONFLICT, f"An account has at most {limits.DOMAINS_MAX} domains: remove one first.")


def _require_own(row: DomainRow) -> None:
    if row.is_shared:
        raise Refusal(
            Code.FORBIDDEN,
            f"{row.name} is shared with all accounts by the operator of this service, and only the operator can "
            "change it: add your own domain.",
        )


def _require_no_rotation(row: DomainRow, keys: Sequence[DomainKeysRow]) -> None:
    if waiting_among(keys) is not None:
        raise Refusal(
            Code.CONFLICT,
            f"New keys of {row.name} already wait for their records: publish those, then verify the domain.",
        )
    if len(keys) >= limits.DOMAIN_KEYS_RETIRED_MAX:
        raise Refusal(
            Code.CONFLICT,
            f"The keys of {row.name} were replaced {len(keys)} times in a week: wait until the oldest "
            "previous key is no longer shown.",
        )


def _read_name(given: str) -> str:
    """The domain's name; a text that can't be a domain is not found."""
    try:
        return input_checks.domain_name(given)
    except Refusal:
        raise _unknown(given) from None


def _unknown(given: str) -> Refusal:
    return Refusal(Code.NOT_FOUND, f"The account has no domain {given[:253]!r}: add it first.")


def _already_added(name: str) -> Refusal:
    return Refusal(Code.CONFLICT, f"The account already has {name}, with records to publish: see the domain itself.")


def _base32(random: bytes) -> str:
    return base64.b32encode(random).decode().lower().rstrip("=")
