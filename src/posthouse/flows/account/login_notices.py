"""Notices of a login from a new place, by email to the user.

A login does not wait for this: it runs afterwards, and a failure is logged.
"""

from typing import Final

import structlog

from posthouse.flows.shared.background_tasks import BackgroundTasks
from posthouse.flows.shared.context import Context, Flow
from posthouse.flows.shared.service_mail import ServiceMail
from posthouse.rules import ids, service_text
from posthouse.rules.ids import UserId
from posthouse.rules.login import (
    LOCATIONS_KEPT,
    NOTICES_A_DAY_MAX,
    NOTICES_PERIOD,
    SEEN_AGAIN_AFTER,
    LoginLocation,
    login_location,
)
from posthouse.rules.refusal import Refusal
from posthouse.store import logins
from posthouse.store.logins import SeenLocation as Seen

log = structlog.get_logger(__name__)

# If there are more at a time, some are skipped, because the logins matter more.
IN_PROGRESS_MAX: Final = 100


class LoginNotices(Flow):
    def __init__(self, context: Context, *, service_mail: ServiceMail) -> None:
        super().__init__(context)
        self._service_mail = service_mail
        self._tasks = BackgroundTasks()

    def note_login(self, user_id: UserId, email: str, peer: str, user_agent: str) -> None:
        """Note that the user logged in; returns immediately."""
        if len(self._tasks) >= IN_PROGRESS_MAX:
            log.warning("login_place_not_noted", user=ids.text(ids.USER, user_id))
            return
        self._tasks.spawn(self._note(user_id, email, peer, login_location(peer, user_agent)))

    async def settle(self) -> None:
        """Return when all logins are noted."""
        await self._tasks.settle()

    async def _note(self, user_id: UserId, email: str, peer: str, place: LoginLocation) -> None:
        try:
            now = self._clock.now()
            if await self._is_to_be_mailed(user_id, place):
                await self._service_mail.send(email, *service_text.new_login(now, peer, place.program))
        except Refusal as refusal:
            # There is no sender, or the service can't send now.
            log.warning("login_notice_not_mailed", code=refusal.code.value)

    async def _is_to_be_mailed(self, user_id: UserId, place: LoginLocation) -> bool:
        now = self._clock.now()
        notified_after = now - NOTICES_PERIOD
        async with self._database.transaction() as tx:
            seen = await logins.note_location(tx, user_id, place, now, seen_again_after=SEEN_AGAIN_AFTER)
            if seen is Seen.BEFORE:
                return False
            is_marked = seen is Seen.NEW and await logins.mark_location_notified(
                tx, user_id, place, now, notified_after=notified_after, notices_max=NOTICES_A_DAY_MAX
            )
            await logins.trim_locations(tx, user_id, LOCATIONS_KEPT, notified_after=notified_after)
        return is_marked
