"""An account's templates, their versions, and the published version."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from posthouse.flows.shared.context import Flow
from posthouse.flows.shared.large_mail import rendered
from posthouse.flows.shared.page import Page, page_of, time_cursor, time_position
from posthouse.rules import limits, template
from posthouse.rules.credential import Actor
from posthouse.rules.ids import AccountId
from posthouse.rules.refusal import Code, Refusal, invalid, unreadable_cursor
from posthouse.rules.template import RenderedTemplate, StoredVersion, Template, Variables
from posthouse.store import accounts, templates
from posthouse.store.audit_log import Detail
from posthouse.store.postgres import Connection
from posthouse.store.templates import TemplateRow as TemplateRow
from posthouse.store.templates import TemplateVersionRow as TemplateVersionRow

# How many of the newest versions are shown with their texts; older stored versions can still be published.
VERSIONS_SHOWN_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class Preview:
    """`variables` are those of the content, each with the parts that use it; no value was given for those `missing`."""

    content: RenderedTemplate
    variables: Mapping[str, Sequence[str]]
    missing: Sequence[str]


class Templates(Flow):
    async def create(
        self, account_id: AccountId, alias: str, name: str | None, content: Template, actor: Actor, *, publish: bool
    ) -> TemplateRow:
        template.check_alias(alias)
        template.check(content)
        template.check_name(name or alias)
        now = self._clock.now()
        async with self._database.transaction() as tx:
            await accounts.lock(tx, account_id)
            if await templates.count(tx, account_id, limits.TEMPLATES_MAX) >= limits.TEMPLATES_MAX:
                raise Refusal(
                    Code.CONFLICT, f"An account has at most {limits.TEMPLATES_MAX} templates: delete one first."
                )
            created = await templates.insert(tx, account_id, alias, name or alias, content, now)
            if created is None:
                raise Refusal(Code.CONFLICT, f"The alias {alias!r} is taken: choose another, or add a version to it.")
            if await templates.stored_bytes(tx, account_id) > limits.TEMPLATES_BYTES_MAX:
                raise _too_large()
            await templates.insert_version(tx, account_id, alias, 1, content, actor.name, now)
            detail = {"published": publish}
            await self._audit_log.add_entry(tx, account_id, actor, "template.created", alias, now, detail)
            return await self._published(tx, account_id, created, publish, now)

    async def add_version(
        self, account_id: AccountId, alias: str, content: Template, actor: Actor, *, publish: bool
    ) -> TemplateRow:
        _require_alias(alias)
        template.check(content)
        now = self._clock.now()
        async with self._database.transaction() as tx:
            grown = await templates.take_next_version(tx, account_id, alias, content, now)
            if grown is None:
                raise _unknown(alias)
            deleted = await self._delete_excess(tx, account_id, grown)
            await templates.insert_version(tx, account_id, alias, grown.latest_version, content, actor.name, now)
            detail: Detail = {"version": grown.latest_version, "published": publish}
            if deleted:
                detail = {**detail, "versions_deleted": deleted}
            await self._audit_log.add_entry(tx, account_id, actor, "template.version_added", alias, now, detail)
            return await self._published(tx, account_id, grown, publish, now)

    async def publish(self, account_id: AccountId, alias: str, version: int, actor: Actor) -> TemplateRow:
        _require_alias(alias)
        now = self._clock.now()
        async with self._database.transaction() as tx:
            await self._version(tx, account_id, alias, version)
            await self._audit_log.add_entry(
                tx, account_id, actor, "template.published", alias, now, {"version": version}
            )
            return await self._publish(tx, account_id, alias, version, now)

    async def page(self, account_id: AccountId, cursor: str | None, count: int) -> Page[TemplateRow]:
        before = None if cursor is None else _position(cursor)
        async with self._database.connection() as connection:
            found = await templates.templates(connection, account_id, before, count + 1)
        return page_of(found, count, lambda row: time_cursor(row.created_at, row.alias))

    async def template(self, account_id: AccountId, alias: str) -> tuple[TemplateRow, list[TemplateVersionRow]]:
        _require_alias(alias)
        async with self._database.connection() as connection:
            found = await templates.template(connection, account_id, alias)
            if found is None:
                raise _unknown(alias)
            return found, await templates.versions(connection, account_id, alias, VERSIONS_SHOWN_MAX)

    async def preview(self, account_id: AccountId, alias: str, version: int | None, variables: Variables) -> Preview:
        """The version as it would be sent: the given one, otherwise the published one, otherwise the latest."""
        _require_alias(alias)
        async with self._database.connection() as connection:
            found = await templates.template(connection, account_id, alias)
            if found is None:
                raise _unknown(alias)
            number = version if version is not None else found.published_version or found.latest_version
            shown = await self._version(connection, account_id, alias, number)
        content = await rendered(account_id, shown.content, variables)
        return Preview(content, template.variables(shown.content), [])

    async def preview_draft(self, alias: str, draft: Template, variables: Variables) -> Preview:
        """Content that is not stored, for a template that need not exist yet."""
        _require_alias(alias)
        template.check(draft)
        if len(variables) > limits.VARIABLES_MAX:
            raise invalid(f"`variables` has {len(variables)} keys: at most {limits.VARIABLES_MAX} are allowed.")
        content, missing = template.render_draft(draft, variables, bytes_max=limits.MIME_BYTES_MAX)
        return Preview(content, template.variables(draft), missing)

    async def rename(
        self, account_id: AccountId, alias: str, new_alias: str | None, name: str | None, actor: Actor
    ) -> TemplateRow:
        """Requests with the old alias are refused within seconds."""
        _require_alias(alias)
        if new_alias is None and name is None:
            raise invalid("Nothing to change: give `alias`, `name` or both.")
        new_alias = alias if new_alias is None else new_alias
        template.check_alias(new_alias)
        if name is not None:
            template.check_name(name)
        async with self._database.transaction() as tx:
            await accounts.lock(tx, account_id)
            now = self._clock.now()
            if new_alias != alias and await templates.template(tx, account_id, new_alias) is not None:
                raise Refusal(Code.CONFLICT, f"The alias {new_alias!r} is taken: choose another.")
            renamed = await templates.rename(tx, account_id, alias, new_alias, name, now)
            if renamed is None:
                raise _unknown(alias)
            await accounts.touch(tx, account_id, now)
            detail: Detail = {"alias": new_alias, "name": renamed.name}
            await self._audit_log.add_entry(tx, account_id, actor, "template.renamed", alias, now, detail)
        return renamed

    async def delete(self, account_id: AccountId, alias: str, actor: Actor) -> None:
        _require_alias(alias)
        now = self._clock.now()
        async with self._database.transaction() as tx:
            if not await templates.delete(tx, account_id, alias):
                raise _unknown(alias)
            await accounts.touch(tx, account_id, now)
            await self._audit_log.add_entry(tx, account_id, actor, "template.deleted", alias, now)

    @staticmethod
    async def _delete_excess(tx: Connection, account_id: AccountId, grown: TemplateRow) -> int:
        """Delete the oldest versions that are not published, as far as the limits require; returns how many."""
        bytes_over = await templates.stored_bytes(tx, account_id) - limits.TEMPLATES_BYTES_MAX
        stored = await templates.stored_versions(tx, account_id, grown.alias, limits.TEMPLATE_VERSIONS_MAX)
        added = StoredVersion(grown.latest_version, 0)
        used = {added.version, grown.published_version or added.version}
        excess = template.excess_versions([*stored, added], used, bytes_over)
        if bytes_over > sum(row.size_bytes for row in excess):
            raise _too_large()
        if excess:
            await templates.delete_versions(tx, account_id, grown.alias, excess)
        return len(excess)

    async def _published(
        self, tx: Connection, account_id: AccountId, row: TemplateRow, publish: bool, now: datetime
    ) -> TemplateRow:
        return await self._publish(tx, account_id, row.alias, row.latest_version, now) if publish else row

    async def _publish(
        self, tx: Connection, account_id: AccountId, alias: str, version: int, now: datetime
    ) -> TemplateRow:
        published = await templates.publish(tx, account_id, alias, version, now)
        if published is None:
            raise _unknown(alias)
        await accounts.touch(tx, account_id, now)
        return published

    @staticmethod
    async def _version(connection: Connection, account_id: AccountId, alias: str, number: int) -> TemplateVersionRow:
        is_possible = 1 <= number <= limits.TEMPLATE_VERSION_MAX
        found = await templates.version(connection, account_id, alias, number) if is_possible else None
        if found is None:
            raise Refusal(Code.NOT_FOUND, f"The template {alias!r} has no version {number}.")
        return found


def _require_alias(alias: str) -> None:
    """A text that can't be an alias is not found; PostgreSQL would even fail on a NUL."""
    if not template.is_alias(alias):
        raise _unknown(alias)


def _too_large() -> Refusal:
    return Refusal(
        Code.CONFLICT,
        f"The account's templates may have at most {limits.TEMPLATES_BYTES_MAX // limits.MIB} MiB, including all "
        "versions: delete templates that you no longer use.",
    )


def _unknown(alias: str) -> Refusal:
    return Refusal(Code.NOT_FOUND, f"This account has no template {alias!r}.")


def _position(cursor: str) -> tuple[datetime, str]:
    at, alias = time_position(cursor)
    if "\0" in alias:
        raise unreadable_cursor()
    return at, alias
