"""Links to the dashboard and to captured mail, which work once."""

from typing import Final

from posthouse.compose.flows import open_flows
from posthouse.config import Settings

_EVERY_ADDRESS: Final = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104


async def login_link_url(settings: Settings, email: str) -> str:
    """A link to the dashboard that logs in the user with this address."""
    async with open_flows(settings) as flows:
        return service_url(settings) + await flows.login_links.new_link(email)


async def captured_mail_url(settings: Settings, account: str, message_id: str | None = None) -> str:
    """A link to the captured mail of the account with this name or id, or to one of its messages."""
    async with open_flows(settings) as flows:
        account_id = await flows.accounts.account_id(account)
        return service_url(settings) + await flows.captured_mail.new_link(account_id, message_id)


def service_url(settings: Settings) -> str:
    """Where a browser on this machine reaches the HTTP API."""
    host = settings.http.host
    shown = _EVERY_ADDRESS.get(host, f"[{host}]" if ":" in host else host)
    return settings.http.public_url or f"http://{shown}:{settings.http.port}"
