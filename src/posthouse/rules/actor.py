"""Actors: who does something to an account, as its log of changes tells it."""

from dataclasses import dataclass
from typing import Final

from posthouse.rules.ids import UserId


@dataclass(frozen=True, slots=True)
class Actor:
    """A person, by their address; or one of the two that are none."""

    user_id: UserId | None
    name: str


OPERATOR: Final = Actor(None, "operator")
SERVICE: Final = Actor(None, "posthouse")
