"""Sending, bounces, complaints and erasures of accounts, and the check of their reputation, on a real database."""

import json
from datetime import timedelta
from typing import Any, Final
from uuid import uuid4

from posthouse.flows.account.erasures import Erasures
from posthouse.flows.inbound.reports import Reports
from posthouse.flows.inbound.reputation import Reputation, ReputationRun
from posthouse.flows.operate.erasing import Erasing
from posthouse.flows.operate.search_indexer import SearchIndexer
from posthouse.flows.shared.principal import Program
from posthouse.mail.envelope import MailReference
from posthouse.rules.erasure import ErasureKey
from posthouse.rules.ids import AccountId, ApiKeyId
from posthouse.rules.reputation import ReputationFigures
from posthouse.store import reputation
from posthouse.store.delivery_claims import ClaimedRecipient
from posthouse.store.delivery_outcomes import DeliveryOutcome, DeliveryResult, NewEvent
from tests.support.accept_flow import Sender, new_id
from tests.support.context import context
from tests.support.delivery_steps import DeliverySteps
from tests.support.feedback_loop import TRUSTED, complaint_check
from tests.support.maintenance import new_maintenance

ERASURE_KEYS: Final = (ErasureKey(b"", b"k" * 32),)
UNKNOWN: Final[dict[str, Any]] = {"stage": "rcpt", "response": "5.1.1 unknown", "suppress": True}


class ReputationFlow:
    """Sends many messages at once, and lets a part of them bounce."""

    def __init__(self, steps: DeliverySteps, service_account: str = "") -> None:
        self.steps = steps
        self.reputation = Reputation(context(steps.database, steps.clock), service_account=service_account)
        self._number = 0

    def addresses(self, count: int) -> list[str]:
        self._number += count
        return [f"r{self._number - number:05}@example.org" for number in range(count)]

    async def send(
        self, delivered: int, unknown: int = 0, sender: Sender | None = None, **bounced: Any
    ) -> list[ClaimedRecipient]:
        """This many results of each kind, the delivered ones first; they have events."""
        results = [DeliveryResult.DELIVERED] * delivered + [DeliveryResult.BOUNCED] * unknown
        claimed: list[ClaimedRecipient] = []
        while len(claimed) < len(results):
            count = min(50, len(results) - len(claimed))
            claimed += await self.steps.claimed(self.addresses(count), sender=sender)
        await self.steps.record(
            *[self.outcome(claim, result, **bounced) for claim, result in zip(claimed, results, strict=True)]
        )
        return claimed

    def outcome(self, claim: ClaimedRecipient, result: DeliveryResult, **bounced: Any) -> DeliveryOutcome:
        """Its event has a body that an erasure can read; what bounced has an unknown address by default."""
        kind = f"email.{result}"
        body = json.dumps({"id": "evt_1", "type": kind, "created_at": "", "data": {"to": claim.email}}).encode()
        event = NewEvent(new_id(self.steps.clock.now()), kind, body)
        about = {**UNKNOWN, **bounced} if result is DeliveryResult.BOUNCED else {}
        return self.steps.outcome(claim, result, event=event, **about)

    async def come_back(
        self, mail: bytes, *claimed: ClaimedRecipient, is_shared: bool = False, peer: str = TRUSTED
    ) -> None:
        feedback = Reports(
            context(self.steps.database, self.steps.clock, return_path=(b"k",)),
            return_path_domain="bounce.example.com",
            complaint_check=complaint_check(),
        )
        for row in claimed:
            position = None if is_shared else row.position
            await feedback.receive(mail, [MailReference.of(row.account_id, row.message_id, position)], peer)

    async def erase(self, *claimed: ClaimedRecipient) -> None:
        """Their accounts erase their addresses, completely."""
        steps = self.steps
        erasures = Erasures(context(steps.database, steps.clock, erasure=ERASURE_KEYS))
        for row in claimed:
            await erasures.begin(Program(row.account_id, ApiKeyId(uuid4())), row.email)
        erasing = Erasing(context(steps.database, steps.clock))
        indexer = SearchIndexer(context(steps.database, steps.clock))
        while not erasing.is_idle():
            steps.clock.advance(seconds=30)
            await indexer.run()
            await erasing.step()
        await new_maintenance(steps.database, steps.clock).forget_contents()

    async def run(self) -> ReputationRun:
        self.steps.clock.advance(seconds=30)
        return await self.reputation.run()

    async def figures(self, **given: Any) -> ReputationFigures:
        now = self.steps.clock.now()
        async with self.steps.database.connection() as connection:
            account_id = AccountId(self.steps.sender.account_id)
            return await reputation.figures(connection, account_id, now - timedelta(days=1), **given)

    async def suspended(self) -> dict[str, str | None]:
        return dict(await self.steps.fetch("SELECT name, suspended_reason FROM accounts"))
