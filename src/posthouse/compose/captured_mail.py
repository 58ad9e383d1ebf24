"""The page of captured mail, for the HTTP process and for commands, and links to it."""

from typing import Final

from posthouse.chance import Chance
from posthouse.clock import Clock
from posthouse.config import Settings
from posthouse.flows.account.captured_mail import CapturedMail
from posthouse.flows.account.message_detail import MessageDetail
from posthouse.flows.account.message_search import MessageSearch
from posthouse.store.postgres import Database

_EVERY_ADDRESS: Final = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104


def captured_mail(settings: Settings, database: Database, clock: Clock, chance: Chance) -> CapturedMail:
    return CapturedMail(
        database=database,
        clock=clock,
        chance=chance,
        peppers=settings.secrets.peppers,
        message_detail=MessageDetail(database=database, clock=clock, bodies_days=settings.retention.bodies_days),
        message_search=MessageSearch(database=database, clock=clock),
        captures=settings.delivery.captures,
    )


async def captured_mail_url(settings: Settings, account: str, message_id: str | None = None) -> str:
    """A link that works once, to the captured mail of the account with this name or id, or to a message of it."""
    from posthouse.compose.operator import operator_services  # it builds what is above

    async with operator_services(settings) as services:
        account_id = await services.accounts.account_id(account)
        return service_url(settings) + await services.captured_mail.new_link(account_id, message_id)


def service_url(settings: Settings) -> str:
    """Where a browser on this machine reaches the HTTP API."""
    host = settings.http.host
    shown = _EVERY_ADDRESS.get(host, f"[{host}]" if ":" in host else host)
    return settings.http.public_url or f"http://{shown}:{settings.http.port}"
