"""What manages an account, for its own users over HTTP and for the operator: domains, credentials, team, sessions.

Each function imports its flow itself, so that a command loads no more than it uses.
"""

from typing import TYPE_CHECKING

from posthouse.chance import Chance
from posthouse.clock import Clock
from posthouse.config import Settings
from posthouse.rules.actor import OPERATOR, Actor
from posthouse.store.postgres import Database

if TYPE_CHECKING:
    from posthouse.flows.account.credentials import Credentials
    from posthouse.flows.account.domains import Domains
    from posthouse.flows.account.kept_sessions import KeptSessions
    from posthouse.flows.account.login_links import LoginLinks
    from posthouse.flows.account.login_notices import LoginNotices
    from posthouse.flows.account.password_reset import PasswordReset
    from posthouse.flows.account.passwords import Passwords
    from posthouse.flows.account.session_tokens import SessionTokens
    from posthouse.flows.account.sessions import Sessions
    from posthouse.flows.account.team import Team
    from posthouse.flows.operate.sandbox_domain import SandboxDomain
    from posthouse.flows.shared.account_limits import Defaults
    from posthouse.flows.shared.service_mail import ServiceMail


def passwords(settings: Settings, database: Database, clock: Clock, chance: Chance) -> "Passwords":
    from posthouse.compose.keys import sealer
    from posthouse.flows.account.passwords import Passwords

    return Passwords(
        database=database, clock=clock, chance=chance, sealer=sealer(settings), peppers=settings.secrets.peppers
    )


def sessions(
    settings: Settings,
    database: Database,
    clock: Clock,
    chance: Chance,
    passwords: "Passwords",
    login_notices: "LoginNotices | None" = None,
    actor: Actor = OPERATOR,
) -> "Sessions":
    from posthouse.compose.keys import sealer
    from posthouse.flows.account.sessions import Sessions

    return Sessions(
        database=database,
        clock=clock,
        chance=chance,
        passwords=passwords,
        sealer=sealer(settings),
        peppers=settings.secrets.peppers,
        tokens=_session_tokens(settings, clock, chance),
        login_notices=login_notices,
        actor=actor,
    )


def kept_sessions(settings: Settings, database: Database, clock: Clock, chance: Chance) -> "KeptSessions":
    from posthouse.flows.account.kept_sessions import KeptSessions

    return KeptSessions(
        database=database,
        clock=clock,
        chance=chance,
        tokens=_session_tokens(settings, clock, chance),
        peppers=settings.secrets.peppers,
    )


def login_links(
    settings: Settings,
    database: Database,
    clock: Clock,
    chance: Chance,
    passwords: "Passwords",
    sessions: "Sessions",
) -> "LoginLinks":
    from posthouse.flows.account.login_links import LoginLinks

    return LoginLinks(
        database=database,
        clock=clock,
        chance=chance,
        passwords=passwords,
        sessions=sessions,
        peppers=settings.secrets.peppers,
    )


def _session_tokens(settings: Settings, clock: Clock, chance: Chance) -> "SessionTokens":
    from posthouse.flows.account.session_tokens import SessionTokens

    return SessionTokens(clock=clock, chance=chance, secret=settings.secrets.jwt_secret.get_secret_value())


def team(
    settings: Settings,
    database: Database,
    clock: Clock,
    chance: Chance,
    passwords: "Passwords",
    service_mail: "ServiceMail | None" = None,
) -> "Team":
    from posthouse.flows.account.team import Team

    return Team(
        database=database,
        clock=clock,
        chance=chance,
        passwords=passwords,
        peppers=settings.secrets.peppers,
        public_url=settings.http.public_url,
        service_mail=service_mail,
    )


def password_reset(
    settings: Settings,
    database: Database,
    clock: Clock,
    chance: Chance,
    passwords: "Passwords",
    sessions: "Sessions",
    service_mail: "ServiceMail",
) -> "PasswordReset":
    from posthouse.flows.account.password_reset import PasswordReset

    return PasswordReset(
        database=database,
        clock=clock,
        chance=chance,
        passwords=passwords,
        sessions=sessions,
        service_mail=service_mail,
        peppers=settings.secrets.peppers,
        public_url=settings.http.public_url,
    )


def domains(settings: Settings, database: Database, clock: Clock, chance: Chance, *, keys_ahead: int = 0) -> "Domains":
    from posthouse.compose.connections import resolver
    from posthouse.compose.keys import sealer
    from posthouse.flows.account.dkim_keys import DkimKeys
    from posthouse.flows.account.domains import Domains

    return Domains(
        database=database,
        clock=clock,
        chance=chance,
        sealer=sealer(settings),
        resolver=resolver(settings),
        return_path=settings.return_path,
        dkim_keys=DkimKeys(ahead=keys_ahead),
    )


def sandbox_domain(settings: Settings, database: Database, clock: Clock, chance: Chance) -> "SandboxDomain":
    from posthouse.compose.keys import sealer
    from posthouse.flows.operate.sandbox_domain import SandboxDomain

    return SandboxDomain(
        database=database,
        clock=clock,
        chance=chance,
        sealer=sealer(settings),
        name=settings.service.sandbox_domain,
        account=settings.service.sender_account,
    )


def account_limits(settings: Settings) -> "Defaults":
    from posthouse.flows.shared.account_limits import Defaults
    from posthouse.rules.rate_limit import Rate

    return Defaults(
        rate=Rate(settings.limits.rate_per_second, settings.limits.rate_burst),
        warmup_limits=settings.limits.warmup_limits if settings.limits.warmup_enabled else None,
        stored_bytes_max=settings.limits.stored_bytes_per_day,
    )


def credentials(settings: Settings, database: Database, clock: Clock, chance: Chance) -> "Credentials":
    from posthouse.flows.account.credentials import Credentials

    return Credentials(database=database, clock=clock, chance=chance, peppers=settings.secrets.peppers)
