"""Resends, as an account requests them and follows them; `accept/resender` does the work."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from posthouse.flows.shared.context import Flow, new_id
from posthouse.flows.shared.principal import Caller, Operating
from posthouse.rules import ids, input_checks, limits, search
from posthouse.rules.ids import AccountId
from posthouse.rules.message import TAG_SHAPE, check_metadata, is_tag
from posthouse.rules.refusal import Code, Refusal, invalid
from posthouse.store import resends
from posthouse.store.postgres import Connection
from posthouse.store.resends import NewResend
from posthouse.store.resends import ResendRow as ResendRow


@dataclass(frozen=True, slots=True)
class ResendRequest:
    """As given by the client."""

    since: str | None
    until: str | None
    tag: str | None
    metadata: Mapping[str, str]
    destination: str | None
    is_dry_run: bool
    message_ids: Sequence[str] | None = None

    @property
    def hash(self) -> bytes:
        fields: list[object] = [self.since, self.until, self.tag]
        fields += [sorted(self.metadata.items()), self.destination, self.is_dry_run]
        # Without them as in the version before, which may have begun the resend.
        fields += [] if self.message_ids is None else [list(self.message_ids)]
        return hashlib.blake2b(json.dumps(fields).encode("utf-8", "surrogatepass"), digest_size=32).digest()


class Resends(Flow):
    async def begin(self, caller: Caller | Operating, key: str, request: ResendRequest) -> ResendRow:
        """A new resend; or the one that the key began before, in its current state."""
        resend = self._new(caller.account_id, key, request)
        async with self._database.transaction() as tx:
            now = self._clock.now()
            is_new = await resends.add(tx, resend, now)
            found = await resends.by_key(tx, caller.account_id, key)
            if found is None:
                raise Refusal(
                    Code.CONFLICT, "Another resend of this account is running: wait until it is done, or stop it."
                )
            if found.request_hash != resend.request_hash:
                raise Refusal(
                    Code.IDEMPOTENCY_CONFLICT,
                    "This Idempotency-Key began another resend: use a new key for each, and repeat it in retries.",
                )
            if is_new and not request.is_dry_run:
                await self._note(tx, caller, "resend.begun", found, now)
        return found

    async def resend(self, account_id: AccountId, given_id: str) -> ResendRow:
        resend_id = ids.parse(ids.RESEND, given_id)
        if resend_id is not None:
            async with self._database.connection() as connection:
                found = await resends.by_id(connection, account_id, resend_id)
            if found is not None:
                return found
        raise Refusal(Code.NOT_FOUND, "This account has no resend with this id, or no longer.")

    async def stop(self, caller: Caller | Operating, given_id: str) -> ResendRow:
        """Stop it, if it is running; messages that were already sent again stay."""
        found = await self.resend(caller.account_id, given_id)
        if found.finished_at is None:
            async with self._database.transaction() as tx:
                now = self._clock.now()
                await resends.stop(tx, caller.account_id, found.id, now)
                await self._note(tx, caller, "resend.stopped", found, now)
        return await self.resend(caller.account_id, given_id)

    def _new(self, account_id: AccountId, key: str, request: ResendRequest) -> NewResend:
        now = self._clock.now()
        if request.message_ids is not None:
            return self._of_named(account_id, key, request, request.message_ids, now)
        if request.since is None:
            raise invalid("`since` is required without `message_ids`.")
        since = search.time_bound("since", request.since)
        until = ids.lowest_id(now)
        if request.until is not None:
            until = min(until, search.time_bound("until", request.until))
        if since >= until:
            raise invalid("`since` must be before `until`, and in the past.")
        if request.tag is not None and not is_tag(request.tag):
            raise invalid(f"`tag` has {TAG_SHAPE}.")
        destination = request.destination
        return NewResend(
            account_id,
            new_id(self._randomness, now),
            key,
            request.hash,
            ids.time_of(since),
            ids.time_of(until),
            request.tag,
            check_metadata(request.metadata),
            None if destination is None else input_checks.domain_name(destination, "destination"),
            request.is_dry_run,
            ids.id_before(since),
            None,
        )

    def _of_named(
        self, account_id: AccountId, key: str, request: ResendRequest, given: Sequence[str], now: datetime
    ) -> NewResend:
        if request.metadata or any((request.since, request.until, request.tag, request.destination)):
            raise invalid("`message_ids` can't be combined with `since`, `until`, `tag`, `metadata` or `destination`.")
        if not 1 <= len(given) <= limits.RESEND_MESSAGES_MAX:
            raise invalid(f"`message_ids` has from 1 to {limits.RESEND_MESSAGES_MAX} ids.")
        message_ids = sorted({found for text in given if (found := ids.parse(ids.MESSAGE, text)) is not None})
        if len(message_ids) < len(set(given)):
            raise invalid("`message_ids`: each is the id of a message, `em_…`.")
        first = message_ids[0]
        at = ids.time_of(first)
        return NewResend(
            account_id,
            new_id(self._randomness, now),
            key,
            request.hash,
            at,
            at,
            None,
            {},
            None,
            request.is_dry_run,
            ids.id_before(first),
            message_ids,
        )

    async def _note(
        self, tx: Connection, caller: Caller | Operating, action: str, resend: ResendRow, now: datetime
    ) -> None:
        target = ids.text(ids.RESEND, resend.id)
        await self._audit_log.add_entry(tx, caller.account_id, caller.actor, action, target, now, {})
        if isinstance(caller, Operating):
            await self._operator_log.add_entry(
                tx, action, target, now, {"account": ids.text(ids.ACCOUNT, caller.account_id)}
            )
