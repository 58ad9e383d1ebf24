"""Dry runs: the result of sending a message, without sending it; and test mail that members send to themselves."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from posthouse.flows.accept.preparation import Preparation, require_bound
from posthouse.flows.shared.account_limits import Defaults, suspended, working_copy
from posthouse.flows.shared.context import Context, Flow
from posthouse.flows.shared.principal import Caller, Member, Principal, Program
from posthouse.flows.shared.shares import Rates
from posthouse.mail.address import Mailbox
from posthouse.mail.mx_host import NullMx, mx_hosts
from posthouse.rules import dry_run, ids, lane, message, send_quota
from posthouse.rules.credential import Mode
from posthouse.rules.draft import Draft, compose
from posthouse.rules.ids import AccountId
from posthouse.rules.rate_limit import Rate
from posthouse.rules.refusal import Code, Refusal
from posthouse.store import acceptance, domains, suppressions
from posthouse.store.control_cache import ControlCache
from posthouse.wire.dns import MxRecords, NoAnswer, NoName, Resolver

# The client waits for the response: what DNS has not answered by then is missing from it.
LOOKUP_SECONDS_MAX: Final = 2.0
CONCURRENT_LOOKUPS_MAX: Final = 50
# A dry run costs no credit, and queries other organisations' name servers.
DRY_RUNS: Final = Rate(per_second=5, burst=100)
# A second click within this time sends nothing more.
DOUBLE_CLICK: Final = timedelta(seconds=10)
DOMAINS_READ_MAX: Final = 1_000

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# These refusals depend on the moment, not on the message.
_TEMPORARY: Final = frozenset({Code.SERVICE_UNAVAILABLE, Code.TEMPORARY_FAILURE})


@dataclass(frozen=True, slots=True)
class DryRunRecipient:
    """`lane` is the mailbox provider's, or the domain's own; None if DNS has not answered."""

    email: str
    field: str
    suppressed: str | None
    lane: str | None
    is_simulated: bool


@dataclass(frozen=True, slots=True)
class SenderDomain:
    """How DMARC judges the From address: by DKIM, and by SPF of the return path."""

    name: str
    is_registered: bool
    is_verified: bool
    selectors: tuple[str, ...]
    return_path: str
    is_dkim_aligned: bool
    is_spf_aligned: bool


@dataclass(frozen=True, slots=True)
class DryRunReport:
    """`refusal` is the first that sending would return; `mime` is None if it can't be composed."""

    refusal: Refusal | None
    mime: bytes | None
    subject: str | None
    template: str | None
    recipients: tuple[DryRunRecipient, ...]
    credits_needed: int
    credits_available: int
    domain: SenderDomain
    warnings: list[str]


@dataclass(frozen=True, slots=True)
class Installation:
    """The settings of this installation on which its mail depends."""

    return_path_domain: str
    captures: bool
    signs: bool


class DryRun(Flow):
    def __init__(
        self,
        context: Context,
        *,
        control_cache: ControlCache,
        resolver: Resolver,
        defaults: Defaults,
        preparation: Preparation,
        installation: Installation,
    ) -> None:
        super().__init__(context)
        self._control_cache = control_cache
        self._resolver = resolver
        self._defaults = defaults
        self._installation = installation
        self._preparation = preparation
        self._lookups = 0
        self._rates: Rates[AccountId] = Rates()

    async def dry_run(self, caller: Caller, draft: Draft) -> DryRunReport:
        """What sending the draft would result in now; nothing is reserved, counted or stored."""
        account_id = caller.account_id
        mode, bound_to = (caller.mode, caller.sender_domains) if isinstance(caller, Program) else (Mode.LIVE, ())
        is_test = mode is Mode.TEST
        count = len(draft.recipients)
        credits_needed = 0 if is_test else count
        now = self._clock.now()
        self._limit(account_id, now)
        async with self._database.connection() as connection:
            account = working_copy(await acceptance.read(connection, account_id), self._defaults)
            keys = [recipient.email.lower() for recipient in draft.recipients]
            reasons = await suppressions.reasons_of(connection, account_id, keys)
            row = await domains.find(connection, account_id, draft.sender.domain)
        available = account.available
        refusals = [suspended()] if account.suspended else []
        content = written = None
        # Refreshes what the cache knows about the account's domains, which `require` uses.
        is_verified = await self._control_cache.is_verified(account_id, draft.sender.domain)
        try:
            require_bound(bound_to, draft.sender)
            await self._preparation.require(account_id, [draft.sender], draft.recipients, one_click=draft.one_click)
        except Refusal as refusal:
            refusals.append(_lasting(refusal))
        try:
            content = await self._preparation.content(account_id, draft)
            message_id = ids.new_message_id(now, self._randomness.id_bytes())
            written = await self._preparation.write(account_id, content, message_id, now)
        except Refusal as refusal:
            refusals.append(_lasting(refusal))
        try:
            message.check_send_time(draft.send_at, now)
            stored_bytes = 0 if written is None else len(written)
            charge = send_quota.Charge(count, credits_needed, send_at=draft.send_at, stored_bytes=stored_bytes)
            send_quota.admit(account, charge, now)
        except Refusal as refusal:
            refusals.append(refusal)
        recipients, unreachable = await self._recipients(draft, reasons, is_test=is_test)
        warnings = dry_run.warnings(draft, content, None if written is None else len(written), len(reasons))
        return DryRunReport(
            refusal=refusals[0] if refusals else None,
            mime=written,
            subject=None if content is None else content.subject,
            template=draft.template,
            recipients=recipients,
            credits_needed=credits_needed,
            credits_available=available,
            domain=await self._sender_domain(
                account_id, draft.sender, is_registered=row is not None, is_verified=is_verified
            ),
            warnings=[*warnings, *unreachable],
        )

    async def test_draft(
        self, member: Member, sender: str | None, subject: str | None, text: str | None, html: str | None
    ) -> Draft:
        """A test message to the member's own address, from the given sender or the account's first verified domain."""
        if not sender:
            sender = f"{dry_run.TEST_LOCAL_PART}@{await self._first_verified(member.account_id)}"
        domain = sender.rpartition("@")[2].rstrip(">")
        words = dry_run.TEST_TEXT.format(domain=domain) if not text and not html else text
        return compose(sender=sender, to=[member.email], subject=subject or dry_run.TEST_SUBJECT, text=words, html=html)

    async def click_key(self, principal: Principal, member: Member, body_hash: bytes) -> str:
        """The idempotency key of a request without a key: the same for the same mail within a few seconds."""
        now = self._clock.now()
        number = (now - _EPOCH) // DOUBLE_CLICK
        texts = [
            f"test-email:{member.user_id.hex}:{message.stored_fingerprint(body_hash).hex()}:{window}"
            for window in (number - 1, number)
        ]
        before = principal.key(texts[0])
        async with self._database.connection() as connection:
            known = (await acceptance.recall(connection, [before])).get(before)
        # The first click may have been in the previous window.
        is_same = known is not None and now - ids.time_of(known.message_id) < DOUBLE_CLICK
        return texts[0] if is_same else texts[1]

    async def _first_verified(self, account_id: AccountId) -> str:
        async with self._database.connection() as connection:
            rows = await domains.list_of_account(connection, account_id, DOMAINS_READ_MAX)
        for row in sorted(rows, key=lambda row: row.is_shared):
            if row.verified_at is not None:
                return row.name
        raise Refusal(
            Code.FORBIDDEN,
            "This account has no verified domain to send from: register one with POST /v1/domains, publish the DNS "
            "records that it returns, and verify it.",
        )

    async def _sender_domain(
        self, account_id: AccountId, sender: Mailbox, *, is_registered: bool, is_verified: bool
    ) -> SenderDomain:
        keys = await self._control_cache.signing_keys(account_id, sender.domain) if self._installation.signs else ()
        return_path = self._installation.return_path_domain
        return SenderDomain(
            name=sender.domain,
            is_registered=is_registered,
            is_verified=is_verified,
            selectors=tuple([key.selector for key in keys]),
            return_path=return_path,
            # Mail is signed with the key of the From address's domain.
            is_dkim_aligned=bool(keys),
            is_spf_aligned=dry_run.is_aligned(sender.domain, return_path),
        )

    async def _recipients(
        self, draft: Draft, reasons: Mapping[str, str], *, is_test: bool
    ) -> tuple[tuple[DryRunRecipient, ...], list[str]]:
        """The recipients, and warnings about destinations that accept no mail."""
        destinations = {recipient.destination for recipient in draft.recipients}
        if is_test or self._installation.captures:
            simulated = destinations
        else:
            simulated = destinations & {self._preparation.simulator_domain}
        lanes, warnings = await self._lanes(destinations, simulated)
        recipients = [
            DryRunRecipient(
                email=recipient.email,
                field=recipient.field,
                suppressed=reasons.get(recipient.email.lower()),
                lane=lanes.get(recipient.destination),
                is_simulated=recipient.destination in simulated,
            )
            for recipient in draft.recipients
        ]
        return tuple(recipients), warnings

    async def _lanes(self, destinations: set[str], simulated: set[str]) -> tuple[dict[str, str], list[str]]:
        """The lanes for which DNS answered in time, and warnings about destinations that accept no mail."""
        found: dict[str, str] = {}
        warnings: list[str] = []

        async def look_up(destination: str) -> None:
            answer = await self._mx_hosts(destination)
            if isinstance(answer, NoName):
                warnings.append(f"The domain {destination} does not exist: mail to it bounces.")
            elif isinstance(answer, MxRecords):
                hosts = mx_hosts(destination, answer.records, b"")
                if isinstance(hosts, NullMx):
                    warnings.append(f"The domain {destination} accepts no mail: mail to it bounces.")
                else:
                    found[destination] = lane.lane_by_hosts(destination, [host.host for host in hosts])

        found |= dict.fromkeys(simulated, self._preparation.simulator_domain)
        lookups = [asyncio.create_task(look_up(name)) for name in destinations - simulated]
        if lookups:
            _, late = await asyncio.wait(lookups, timeout=LOOKUP_SECONDS_MAX)
            for lookup in late:
                lookup.cancel()
        return found, sorted(warnings)

    def _limit(self, account_id: AccountId, now: datetime) -> None:
        allowed = f"An account may try {DRY_RUNS.per_second} messages a second, in bursts of up to {DRY_RUNS.burst}"
        self._rates.require(account_id, DRY_RUNS, now, allowed)

    async def _mx_hosts(self, destination: str) -> MxRecords | NoName | NoAnswer | None:
        """What DNS answers; None if too many queries are already open."""
        if self._lookups >= CONCURRENT_LOOKUPS_MAX:
            return None
        self._lookups += 1
        # A query stays open until its answer or time-out, even if the request was cancelled.
        asked = asyncio.ensure_future(self._resolver.mx_hosts(destination))
        asked.add_done_callback(self._lookup_done)
        return await asyncio.shield(asked)

    def _lookup_done(self, asked: asyncio.Future[MxRecords | NoName | NoAnswer]) -> None:
        self._lookups -= 1
        if not asked.cancelled():
            asked.exception()  # so that asyncio does not log it as never retrieved


def _lasting(refusal: Refusal) -> Refusal:
    """The refusal, if it is about the message; a temporary one is raised, since it says nothing about the message."""
    if refusal.code in _TEMPORARY:
        raise refusal
    return refusal
