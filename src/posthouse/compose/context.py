"""What the flows of a process start with."""

from posthouse.clock import Clock
from posthouse.config import Settings
from posthouse.flows.shared.context import Context, Keys
from posthouse.randomness import SystemRandomness
from posthouse.store.postgres import Database


def context_of(settings: Settings, database: Database, clock: Clock) -> Context:
    return Context(database, clock, SystemRandomness(), keys(settings))


def keys(settings: Settings) -> Keys:
    secrets = settings.secrets
    return Keys(secrets.peppers, secrets.seal_key_bytes, secrets.seal_key_active, secrets.jwt_secrets)
