"""Many accounts with a webhook each, inserted at once; and their events, as delivery would have recorded them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from posthouse.config import Settings
from posthouse.randomness import SystemRandomness
from posthouse.rules import event, ids
from posthouse.rules.event import EventType
from posthouse.rules.ids import AccountId, MessageId
from posthouse.rules.ticket import WebhookTicket
from posthouse.store import endpoint_events
from posthouse.store.endpoint_events import MailEvent
from posthouse.store.endpoints import secret_purpose
from posthouse.store.seal import Sealer
from tests.support.accept_flow import new_id
from tests.support.service import basic
from tests.support.webhook_flow import NAME, is_signed
from tests.support.webhook_receiver import Request
from tests.support.webhook_steps import ALL_EVENTS

CREDITS: Final = 1_000_000_000
ATTEMPTS_MAX: Final = 7
LONG_LEASE: Final = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class WebhookAccount:
    account_id: AccountId
    path: str
    secret: str
    domain: str
    username: str
    password: str

    @property
    def basic(self) -> str:
        return basic(self.username, self.password)

    def mail(self, to: Sequence[str]) -> bytes:
        """The body of a request to send to these addresses."""
        return json.dumps(
            {"from": f"news@{self.domain}", "to": list(to), "subject": "Hello", "text": "Hello."}
        ).encode()


def webhook_settings(port: int, authority: Path) -> dict[str, Any]:
    """Settings of processes that may call webhooks at this loopback port, with certificates of this authority."""
    return {
        "WEBHOOKS__PORTS": f"443,{port}",
        "WEBHOOKS__AUTHORITY_FILE": str(authority),
        "WEBHOOKS__ALLOW_LOOPBACK": "true",
        "LIMITS__RATE_PER_SECOND": "1000000",
        "LIMITS__RATE_BURST": "1000000",
        "LIMITS__WARMUP_LIMITS": "1000000000",
    }


async def create_accounts(pool: Any, given: Settings, port: int, paths: Sequence[str]) -> list[WebhookAccount]:
    """An account for each path, with credits, a credential, a verified domain and an endpoint at that path."""
    sealer = Sealer(given.secrets.seal_key_bytes, given.secrets.seal_key_active)
    # Long ago: a server drops an account that changed lately from its cache.
    then = datetime.now(UTC) - timedelta(hours=1)
    made = []
    for path in paths:
        unique = SystemRandomness().bytes(6).hex()
        made.append(
            WebhookAccount(
                account_id=AccountId(new_id(then)),
                path=path,
                secret=event.SECRET_PREFIX + SystemRandomness().bytes(20).hex(),
                domain=f"{unique}.example.com",
                username=f"smtp_{unique}",
                password=SystemRandomness().bytes(20).hex(),
            )
        )
    rows: dict[str, tuple[str, list[tuple[object, ...]]]] = {
        "accounts": (
            "id name created_at changed_at available",
            [(account.account_id, account.domain, then, then, CREDITS) for account in made],
        ),
        "credit_grants": (
            "account_id id amount reason at",
            [(account.account_id, account.account_id, CREDITS, "test", then) for account in made],
        ),
        "credentials": (
            "account_id id username secret_hash name is_default created_at",
            [
                (account.account_id, new_id(then), account.username, _hash(account, given), "test", True, then)
                for account in made
            ],
        ),
        "domains": (
            "account_id id name token selector dkim_public dkim_sealed created_at verified_at checked_at",
            [
                (account.account_id, new_id(then), account.domain, "token", "selector", "", b"", then, then, then)
                for account in made
            ],
        ),
        "endpoints": (
            "account_id id url types enabled secret_sealed created_at updated_at",
            [
                (
                    account.account_id,
                    account.account_id,
                    f"https://{NAME}:{port}{account.path}",
                    list(ALL_EVENTS),
                    True,
                    sealer.seal(account.secret.encode(), secret_purpose(account.account_id, account.account_id)),
                    then,
                    then,
                )
                for account in made
            ],
        ),
    }
    async with pool.acquire() as connection, connection.transaction():
        for table, (names, records) in rows.items():
            await connection.copy_records_to_table(table, columns=names.split(), records=records)
    return made


def _hash(account: WebhookAccount, given: Settings) -> bytes:
    return given.secrets.peppers.hash(account.password)


async def add_events(
    pool: Any, accounts: Sequence[WebhookAccount], each: int = 1, *, lease: timedelta = timedelta(0)
) -> list[WebhookTicket]:
    """This many events for each account, in turn: held by their tickets until the lease ends, then due."""
    now = datetime.now(UTC)
    events, made = [], []
    for _ in range(each):
        for account in accounts:
            event_id, message_id = new_id(now), ids.new_message_id(now, SystemRandomness().id_bytes())
            body = event.body(
                event_id=event_id,
                type=EventType.DELIVERED,
                created_at=now,
                message_id=message_id,
                position=0,
                to="ada.lovelace@customers.example.org",
                sender=f"news@{account.domain}",
                subject="Your order of this morning is on its way",
                smtp_code=250,
                smtp_response="2.0.0 Ok: queued as 4C1F52A04F",
            )
            events.append((account.account_id, event_id, message_id, 0, EventType.DELIVERED, now, body))
            made.append(MailEvent(account.account_id, event_id, EventType.DELIVERED, MessageId(message_id), 0, body))
    async with pool.acquire() as connection, connection.transaction():
        names = ["account_id", "id", "message_id", "position", "type", "created_at", "body"]
        await connection.copy_records_to_table("events", columns=names, records=events)
        return await endpoint_events.enter_mail(connection, made, now, now + lease, ATTEMPTS_MAX)


def signed_at(request: Request, secret: str) -> int | None:
    """When a request was signed with this secret; None if it was not."""
    t = int(request.headers["service-signature"].partition(",")[0].removeprefix("t="))
    return t if is_signed(request, secret, t) else None
