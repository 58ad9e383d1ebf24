"""The context of a flow under test."""

from collections.abc import Sequence
from typing import Final

from posthouse.clock import Clock, DatabaseClock
from posthouse.flows.shared.context import Context, Keys
from posthouse.randomness import Randomness, SystemRandomness
from posthouse.rules.erasure import ErasureKey
from posthouse.rules.pepper import FIRST, Pepper, Peppers
from posthouse.store.postgres import Database
from posthouse.store.seal import Sealer

PEPPERS: Final = Peppers(Pepper(FIRST, b"pepper of the tests"))


def context(
    database: Database,
    clock: Clock | None = None,
    randomness: Randomness | None = None,
    *,
    peppers: Peppers = PEPPERS,
    token_secrets: Sequence[str] = (),
    **derived: Sealer | Sequence[ErasureKey] | Sequence[bytes],
) -> Context:
    """`derived` are keys to use instead of those that are derived from the secrets."""
    keys = Keys(peppers, {"1": bytes(32)}, "1", token_secrets)
    vars(keys).update(derived)
    return Context(database, clock or DatabaseClock(), randomness or SystemRandomness(), keys)
