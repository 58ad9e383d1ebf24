"""Actors: who changed an account, as its audit log records it."""

from dataclasses import dataclass
from typing import Final

from posthouse.rules.ids import UserId


@dataclass(frozen=True, slots=True)
class Actor:
    """A user, named by their address; or the operator or the service itself."""

    user_id: UserId | None
    name: str


OPERATOR: Final = Actor(None, "operator")
SERVICE: Final = Actor(None, "posthouse")
