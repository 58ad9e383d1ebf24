"""The filters of an account's audit log."""

import re
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from posthouse.rules import ids
from posthouse.rules.limits import ADDRESS_CHARACTERS_MAX
from posthouse.rules.refusal import invalid
from posthouse.rules.search import time_bound

_LOWEST: Final = UUID(int=0)
_HIGHEST: Final = UUID(int=2**128 - 1)
# A kind of actions, or one of them.
_ACTION: Final = re.compile(r"[a-z_]{1,40}(\.[a-z_]{1,60})?")


@dataclass(frozen=True, slots=True)
class AuditLogFilters:
    """Ids from `lowest` up to, not including, `before`; None is any. `kind` is what an action begins with."""

    kind: str | None = None
    action: str | None = None
    actor: str | None = None
    user_id: UUID | None = None
    lowest: UUID = _LOWEST
    before: UUID = _HIGHEST


def audit_log_filters(action: str | None, actor: str | None, since: str | None, until: str | None) -> AuditLogFilters:
    """The filters as given by the client; a Refusal if one is invalid."""
    if action is not None and not _ACTION.fullmatch(action):
        raise invalid("`action` is an action such as domain.added, or what it begins with, such as domain.")
    if actor is not None and not (1 <= len(actor) <= ADDRESS_CHARACTERS_MAX and actor.isprintable()):
        raise invalid("`actor` is a member's address or id, `operator` or `posthouse`.")
    user_id = None if actor is None else ids.parse(ids.USER, actor)
    is_whole = action is not None and "." in action
    return AuditLogFilters(
        kind=None if is_whole else action,
        action=action if is_whole else None,
        actor=actor.lower() if actor is not None and user_id is None else None,
        user_id=user_id,
        lowest=_LOWEST if since is None else time_bound("since", since),
        before=_HIGHEST if until is None else time_bound("until", until),
    )
