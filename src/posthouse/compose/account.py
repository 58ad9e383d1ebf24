"""What manages an account, for its own users over HTTP and for the operator: domains, credentials, team, sessions."""

from posthouse.chance import Chance
from posthouse.clock import Clock
from posthouse.compose.connections import resolver
from posthouse.compose.keys import sealer
from posthouse.config import Settings
from posthouse.flows.account.credentials import Credentials
from posthouse.flows.account.dkim_keys import DkimKeys
from posthouse.flows.account.domains import Domains
from posthouse.flows.account.password_reset import PasswordReset
from posthouse.flows.account.passwords import Passwords
from posthouse.flows.account.sessions import Sessions
from posthouse.flows.account.team import Team
from posthouse.flows.shared.service_mail import ServiceMail
from posthouse.store.postgres import Database


def passwords(settings: Settings, database: Database, clock: Clock, chance: Chance) -> Passwords:
    return Passwords(
        database=database, clock=clock, chance=chance, sealer=sealer(settings), pepper=settings.secrets.pepper_bytes
    )


def sessions(settings: Settings, database: Database, clock: Clock, chance: Chance, passwords: Passwords) -> Sessions:
    return Sessions(
        database=database,
        clock=clock,
        chance=chance,
        passwords=passwords,
        sealer=sealer(settings),
        pepper=settings.secrets.pepper_bytes,
        token_secret=settings.secrets.jwt_secret.get_secret_value(),
    )


def team(
    settings: Settings,
    database: Database,
    clock: Clock,
    chance: Chance,
    passwords: Passwords,
    service_mail: ServiceMail | None = None,
) -> Team:
    return Team(
        database=database,
        clock=clock,
        chance=chance,
        passwords=passwords,
        pepper=settings.secrets.pepper_bytes,
        public_url=settings.http.public_url,
        service_mail=service_mail,
    )


def password_reset(
    settings: Settings,
    database: Database,
    clock: Clock,
    chance: Chance,
    passwords: Passwords,
    sessions: Sessions,
    service_mail: ServiceMail,
) -> PasswordReset:
    return PasswordReset(
        database=database,
        clock=clock,
        chance=chance,
        passwords=passwords,
        sessions=sessions,
        service_mail=service_mail,
        pepper=settings.secrets.pepper_bytes,
        public_url=settings.http.public_url,
    )


def domains(settings: Settings, database: Database, clock: Clock, chance: Chance, *, keys_ahead: int = 0) -> Domains:
    return Domains(
        database=database,
        clock=clock,
        chance=chance,
        sealer=sealer(settings),
        resolver=resolver(settings),
        return_path=settings.return_path,
        dkim_keys=DkimKeys(ahead=keys_ahead),
    )


def credentials(settings: Settings, database: Database, clock: Clock, chance: Chance) -> Credentials:
    return Credentials(database=database, clock=clock, chance=chance, pepper=settings.secrets.pepper_bytes)
