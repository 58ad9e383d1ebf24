"""The quota decisions of one shared transaction, made in order on working copies of the accounts."""

from datetime import datetime

from posthouse.flows.accept.replay import AcceptedMessage
from posthouse.flows.shared.account_limits import spending, suspended
from posthouse.rules import send_quota
from posthouse.rules.ids import AccountId
from posthouse.store.acceptance import PreparedMessage, Spending


class QuotaBatch:
    def __init__(self, working: dict[AccountId, send_quota.Account], now: datetime) -> None:
        self._accounts = working
        self._now = now
        self._spent: dict[AccountId, int] = {}
        self.entries: list[PreparedMessage] = []

    def admit(self, entry: PreparedMessage, *, is_request: bool = True) -> AcceptedMessage:
        """Charge the account for the message, or raise why it may not be sent."""
        account = self._accounts[entry.account_id]
        if account.suspended:
            raise suspended()
        count = len(entry.recipients)
        charge = send_quota.Charge(count, entry.credits, is_request, entry.send_at, len(entry.mime))
        reading = send_quota.admit(account, charge, self._now)
        self._spent[account.id] = self._spent.get(account.id, 0) + entry.credits
        self.entries.append(entry)
        return AcceptedMessage(
            message_id=entry.message_id,
            subject=entry.subject,
            recipient_count=count,
            credits_reserved=entry.credits,
            is_replay=False,
            rate_headers=send_quota.rate_headers(account.rate, reading),
        )

    def spendings(self) -> list[Spending]:
        return [spending(self._accounts[account_id], spent) for account_id, spent in self._spent.items()]
