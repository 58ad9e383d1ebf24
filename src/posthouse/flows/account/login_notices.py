"""Notices of a login from a new place, by mail to the user.

A login does not wait for this: it runs afterwards, and if it fails, that is logged.
"""

from typing import Final

import structlog

from posthouse.clock import Clock
from posthouse.flows.shared.background_tasks import BackgroundTasks
from posthouse.flows.shared.service_mail import ServiceMail
from posthouse.rules import ids, service_text
from posthouse.rules.ids import UserId
from posthouse.rules.login_place import (
    NOTICES_A_DAY_MAX,
    NOTICES_PERIOD,
    PLACES_KEPT,
    SEEN_AGAIN_AFTER,
    LoginPlace,
    place_of,
)
from posthouse.rules.refusal import Refusal
from posthouse.store import login_places
from posthouse.store.login_places import Seen
from posthouse.store.postgres import Database

log = structlog.get_logger(__name__)

# Of more at a time, some are not looked at: logins are what matters then.
IN_PROGRESS_MAX: Final = 100


class LoginNotices:
    def __init__(self, *, database: Database, clock: Clock, service_mail: ServiceMail) -> None:
        self._database = database
        self._clock = clock
        self._service_mail = service_mail
        self._tasks = BackgroundTasks()
        self._in_progress = 0

    def note(self, user_id: UserId, email: str, peer: str, user_agent: str) -> None:
        """The user logged in; returns at once."""
        if self._in_progress >= IN_PROGRESS_MAX:
            log.warning("login_place_not_noted", user=ids.text(ids.USER, user_id))
            return
        self._in_progress += 1
        self._tasks.spawn(self._note(user_id, email, peer, place_of(peer, user_agent)))

    async def settle(self) -> None:
        """Return when all logins are noted."""
        await self._tasks.settle()

    async def _note(self, user_id: UserId, email: str, peer: str, place: LoginPlace) -> None:
        try:
            now = self._clock.now()
            if await self._is_to_be_mailed(user_id, place):
                await self._service_mail.send(email, *service_text.new_login(now, peer, place.program))
        except Refusal as refusal:
            # No sender, or a service that can't send at this moment.
            log.warning("login_notice_not_mailed", code=refusal.code.value)
        finally:
            self._in_progress -= 1

    async def _is_to_be_mailed(self, user_id: UserId, place: LoginPlace) -> bool:
        now = self._clock.now()
        notified_after = now - NOTICES_PERIOD
        async with self._database.transaction() as tx:
            seen = await login_places.note(tx, user_id, place, now, seen_again_after=SEEN_AGAIN_AFTER)
            if seen is Seen.BEFORE:
                return False
            is_marked = seen is Seen.NEW and await login_places.mark_notified(
                tx, user_id, place, now, notified_after=notified_after, notices_max=NOTICES_A_DAY_MAX
            )
            await login_places.trim(tx, user_id, PLACES_KEPT, notified_after=notified_after)
        return is_marked
