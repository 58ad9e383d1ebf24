"""Operators: users who may see and change all of the installation. The command line alone makes them."""

from datetime import datetime, timedelta
from typing import Final, NamedTuple

from posthouse.rules.ids import SessionId, UserId
from posthouse.rules.refusal import Code, Refusal

SESSION_MAX: Final = timedelta(hours=8)
VISIT_MAX: Final = timedelta(minutes=30)


class OperatorSession(NamedTuple):
    """A login that lives, and what it needs to be an operator's."""

    user_id: UserId
    email: str
    session_id: SessionId
    began_at: datetime
    is_operator: bool
    has_second_factor: bool


def require(session: OperatorSession, now: datetime) -> None:
    """Raises what the login lacks."""
    if not session.is_operator:
        raise Refusal(
            Code.FORBIDDEN, f"This is for operators: `posthouse user operator {session.email} on` makes one of you."
        )
    if not session.has_second_factor:
        raise Refusal(
            Code.FORBIDDEN, "Operators need a second factor, and you have none: begin one with POST /v1/auth/totp."
        )
    if now - session.began_at > SESSION_MAX:
        raise Refusal(
            Code.UNAUTHORIZED,
            f"An operator's login is valid for {SESSION_MAX // timedelta(hours=1)} hours: log in again.",
        )
