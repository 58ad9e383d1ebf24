"""The demo account of `posthouse dev`: an owner, a verified domain, credits, a live and a test key, an SMTP login."""

import itertools
import secrets
from collections.abc import Mapping
from typing import Final

from posthouse.compose.operator import OperatorServices, operator_services
from posthouse.config import Settings
from posthouse.dev.home import ACCOUNT
from posthouse.rules.actor import OPERATOR
from posthouse.rules.credential import Mode, Role, Scope

CREDITS: Final = 1_000_000


async def prepare(settings: Settings, known: Mapping[str, str]) -> dict[str, str]:
    """Make partitions for the coming days, and the account unless it is `known`; its secrets by name."""
    async with operator_services(settings) as services:
        await services.upkeep.make_partitions()
        accounts = {account.name for account in await services.accounts.list_accounts()}
        if known.get("DEMO_ACCOUNT") in accounts:
            return dict(known)
        # A further account, when the first exists already and its secrets are lost.
        names = itertools.chain([ACCOUNT], (f"{ACCOUNT}-{number}" for number in itertools.count(2)))
        return await _new_account(services, next(name for name in names if name not in accounts))


async def _new_account(services: OperatorServices, name: str) -> dict[str, str]:
    domain, email, password = f"{name}.example", f"owner@{name}.example", secrets.token_urlsafe(12)
    made = await services.accounts.create_account(name)
    account_id, scopes = made.account.id, [Scope.SEND, Scope.READ]
    await services.accounts.grant_credits(name, CREDITS, "to try things out")
    await services.domains.add(account_id, domain, OPERATOR)
    await services.domains.verify(account_id, domain, OPERATOR, vouched=True)
    await services.team.create_user(account_id, email, password, Role.OWNER, OPERATOR)
    live = await services.credentials.create_key(account_id, OPERATOR, name="demo, live", mode=Mode.LIVE, scopes=scopes)
    test = await services.credentials.create_key(account_id, OPERATOR, name="demo, test", mode=Mode.TEST, scopes=scopes)
    return {
        "DEMO_ACCOUNT": name,
        "DEMO_FROM": f"hello@{domain}",
        "DEMO_TEST_KEY": test.secret,
        "DEMO_LIVE_KEY": live.secret,
        "DEMO_SMTP_USERNAME": made.credential.credential.username,
        "DEMO_SMTP_PASSWORD": made.credential.password,
        "DEMO_LOGIN_EMAIL": email,
        "DEMO_LOGIN_PASSWORD": password,
    }
