"""Links that log a user in once, for commands."""

from posthouse.compose.captured_mail import service_url
from posthouse.config import Settings


async def login_link_url(settings: Settings, email: str) -> str:
    """A link to the dashboard that logs the user with this address in."""
    from posthouse.compose.operator import operator_services  # it builds every service

    async with operator_services(settings) as services:
        return service_url(settings) + await services.login_links.new_link(email)
