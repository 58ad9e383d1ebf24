"""Rehearsal: what would become of a message, without a trace; and the test mail that a member sends to oneself."""

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from posthouse.chance import Chance
from posthouse.clock import Clock
from posthouse.flows.accept.preparation import Preparation
from posthouse.flows.shared.account_limits import Defaults, suspended, working_copy
from posthouse.flows.shared.account_rates import AccountRates
from posthouse.flows.shared.principal import Member, Principal
from posthouse.mail.address import Mailbox
from posthouse.mail.exchange import NullExchange, exchanges
from posthouse.rules import dry_run, ids, lane, send_quota
from posthouse.rules.draft import Draft, compose
from posthouse.rules.ids import AccountId
from posthouse.rules.rate_limit import Rate, RateWait
from posthouse.rules.refusal import Code, Refusal
from posthouse.store import acceptance, domains, suppressions
from posthouse.store.acceptance import Key
from posthouse.store.control_cache import ControlCache
from posthouse.store.postgres import Database
from posthouse.wire.dns import MxRecords, NoAnswer, NoName, Resolver

# Someone waits for the answer; what DNS hasn't said by then is not in it.
LOOKUP_SECONDS_MAX: Final = 2.0
LOOKUPS_AT_ONCE_MAX: Final = 50
# A dry run costs no credit, and asks other people's name servers.
DRY_RUNS: Final = Rate(per_second=5, burst=100)
# Two clicks within this are one.
DOUBLE_CLICK: Final = timedelta(seconds=10)
DOMAINS_LOOKED_AT_MAX: Final = 1_000

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# These say nothing about the message, only about this moment.
_PASSING: Final = frozenset({Code.SERVICE_UNAVAILABLE, Code.TEMPORARY_FAILURE})


@dataclass(frozen=True, slots=True)
class Addressee:
    """`lane` is the mailbox provider's, or the domain's own; None while DNS hasn't told."""

    email: str
    field: str
    suppressed: str | None
    lane: str | None
    is_simulated: bool


@dataclass(frozen=True, slots=True)
class SenderDomain:
    """What receivers make of the From address: how DMARC sees it, by DKIM and by SPF of the return path."""

    name: str
    is_registered: bool
    is_verified: bool
    selectors: tuple[str, ...]
    return_path: str
    is_dkim_aligned: bool
    is_spf_aligned: bool


@dataclass(frozen=True, slots=True)
class Trial:
    """`refusal` is the first that sending would meet; `mime` is None when it can't be written."""

    refusal: Refusal | None
    mime: bytes | None
    subject: str | None
    template: str | None
    recipients: tuple[Addressee, ...]
    credits_needed: int
    credits_available: int
    domain: SenderDomain
    warnings: list[str]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What this installation is to the mail that leaves it."""

    hostname: str
    return_path_domain: str
    simulator_domain: str
    offers_one_click: bool
    signs: bool


class DryRun:
    def __init__(
        self,
        *,
        database: Database,
        control_cache: ControlCache,
        clock: Clock,
        chance: Chance,
        resolver: Resolver,
        defaults: Defaults,
        surroundings: Surroundings,
    ) -> None:
        self._database = database
        self._control_cache = control_cache
        self._clock = clock
        self._chance = chance
        self._resolver = resolver
        self._defaults = defaults
        self._surroundings = surroundings
        self._preparation = Preparation(
            control_cache=control_cache,
            hostname=surroundings.hostname,
            offers_one_click=surroundings.offers_one_click,
        )
        self._looking = 0
        self._rates = AccountRates()

    async def dry_run(self, account_id: AccountId, draft: Draft) -> Trial:
        """What sending the draft would come to now; nothing is reserved, counted or remembered."""
        count = len(draft.recipients)
        now = self._clock.now()
        self._limit(account_id, now)
        async with self._database.connection() as connection:
            account = working_copy(await acceptance.read(connection, account_id), self._defaults)
            keys = [recipient.email.lower() for recipient in draft.recipients]
            reasons = await suppressions.reasons_of(connection, account_id, keys)
            row = await domains.find(connection, account_id, draft.sender.domain)
        available = account.available
        refusals = [suspended()] if account.suspended else []
        letter = written = None
        # Refreshes what the cache knows of the account's domains, which `require` goes by.
        is_verified = await self._control_cache.is_verified(account_id, draft.sender.domain)
        try:
            await self._preparation.require(account_id, [draft.sender], one_click=draft.one_click)
        except Refusal as refusal:
            refusals.append(_lasting(refusal))
        try:
            letter = await self._preparation.letter(account_id, draft)
            message_id = ids.new_message_id(now, self._chance.bytes(ids.RANDOM_BYTES))
            written = await self._preparation.write(letter, message_id, now)
        except Refusal as refusal:
            refusals.append(_lasting(refusal))
        try:
            send_quota.admit(account, send_quota.Charge(count, count), now)
        except Refusal as refusal:
            refusals.append(refusal)
        lanes, unreachable = await self._lanes({recipient.destination for recipient in draft.recipients})
        recipients = tuple(
            [
                Addressee(
                    email=one.email,
                    field=one.field,
                    suppressed=reasons.get(one.email.lower()),
                    lane=lanes.get(one.destination),
                    is_simulated=one.destination == self._surroundings.simulator_domain,
                )
                for one in draft.recipients
            ]
        )
        warnings = dry_run.warnings(draft, letter, None if written is None else len(written), len(reasons))
        return Trial(
            refusal=refusals[0] if refusals else None,
            mime=written,
            subject=None if letter is None else letter.subject,
            template=draft.template,
            recipients=recipients,
            credits_needed=count,
            credits_available=available,
            domain=await self._sender_domain(
                account_id, draft.sender, is_registered=row is not None, is_verified=is_verified
            ),
            warnings=[*warnings, *unreachable],
        )

    async def test_draft(
        self, member: Member, sender: str | None, subject: str | None, text: str | None, html: str | None
    ) -> Draft:
        """A mail to the member's own address, from the one given or from the account's first verified domain."""
        if not sender:
            sender = f"{dry_run.TEST_LOCAL_PART}@{await self._first_verified(member.account_id)}"
        domain = sender.rpartition("@")[2].rstrip(">")
        words = dry_run.TEST_TEXT.format(domain=domain) if not text and not html else text
        return compose(sender=sender, to=[member.email], subject=subject or dry_run.TEST_SUBJECT, text=words, html=html)

    async def click_key(self, caller: Principal, member: Member, body_hash: bytes) -> str:
        """The idempotency key of whoever gave none: the same for the same mail, asked for twice in a few seconds."""
        now = self._clock.now()
        number = (now - _EPOCH) // DOUBLE_CLICK
        texts = [f"test-email:{member.user_id.hex}:{body_hash.hex()}:{one}" for one in (number - 1, number)]
        before = Key(caller.account_id, caller.credential_id, texts[0])
        async with self._database.connection() as connection:
            known = (await acceptance.recall(connection, [before])).get(before)
        # The first click may have fallen just before the tens of seconds turned.
        is_same = known is not None and now - ids.time_of(known.message_id) < DOUBLE_CLICK
        return texts[0] if is_same else texts[1]

    async def _first_verified(self, account_id: AccountId) -> str:
        async with self._database.connection() as connection:
            rows = await domains.list_of_account(connection, account_id, DOMAINS_LOOKED_AT_MAX)
        for row in rows:
            if row.verified_at is not None:
                return row.name
        raise Refusal(
            Code.FORBIDDEN,
            "This account has no verified domain to send from: register one with POST /v1/domains, publish the DNS "
            "records that it answers with, and verify it.",
        )

    async def _sender_domain(
        self, account_id: AccountId, sender: Mailbox, *, is_registered: bool, is_verified: bool
    ) -> SenderDomain:
        keys = await self._control_cache.signing_keys(account_id, sender.domain) if self._surroundings.signs else ()
        return_path = self._surroundings.return_path_domain
        return SenderDomain(
            name=sender.domain,
            is_registered=is_registered,
            is_verified=is_verified,
            selectors=tuple([key.selector for key in keys]),
            return_path=return_path,
            # Mail is signed in the name of the From address's own domain.
            is_dkim_aligned=bool(keys),
            is_spf_aligned=dry_run.is_aligned(sender.domain, return_path),
        )

    async def _lanes(self, destinations: set[str]) -> tuple[dict[str, str], list[str]]:
        """The lanes that DNS told in time, and what is to be said of destinations that take no mail."""
        found: dict[str, str] = {}
        warnings: list[str] = []

        async def look(destination: str) -> None:
            answer = await self._exchanges(destination)
            if isinstance(answer, NoName):
                warnings.append(f"The domain {destination} does not exist: mail to it bounces.")
            elif isinstance(answer, MxRecords):
                hosts = exchanges(destination, answer.records, b"")
                if isinstance(hosts, NullExchange):
                    warnings.append(f"The domain {destination} takes no mail: mail to it bounces.")
                else:
                    found[destination] = lane.lane_by_hosts(destination, [host.host for host in hosts])

        simulator = self._surroundings.simulator_domain
        if simulator in destinations:
            found[simulator] = simulator
        looks = [asyncio.create_task(look(one)) for one in destinations if one != simulator]
        if looks:
            _, late = await asyncio.wait(looks, timeout=LOOKUP_SECONDS_MAX)
            for one in late:
                one.cancel()
        return found, sorted(warnings)

    def _limit(self, account_id: AccountId, now: datetime) -> None:
        taken = self._rates.take(account_id, DRY_RUNS, now)
        if isinstance(taken, RateWait):
            raise Refusal(
                Code.RATE_LIMITED,
                f"An account may try {DRY_RUNS.per_second} messages a second and {DRY_RUNS.burst} at once: "
                f"try again in {taken.seconds} s.",
                taken.seconds,
            )

    async def _exchanges(self, destination: str) -> MxRecords | NoName | NoAnswer | None:
        """What DNS says; None when too many are being asked already, or nobody waits any more."""
        if self._looking >= LOOKUPS_AT_ONCE_MAX:
            return None
        self._looking += 1
        # A question that was asked is open until its answer or its time-out, whoever still waits for it.
        asked = asyncio.ensure_future(self._resolver.exchanges(destination))
        asked.add_done_callback(self._looked)
        return await asyncio.shield(asked)

    def _looked(self, asked: asyncio.Future[MxRecords | NoName | NoAnswer]) -> None:
        self._looking -= 1
        if not asked.cancelled():
            asked.exception()  # whoever asked may have left


def _lasting(refusal: Refusal) -> Refusal:
    """The refusal, unless it is one of this moment only: then nothing can be told of the message."""
    if refusal.code in _PASSING:
        raise refusal
    return refusal
