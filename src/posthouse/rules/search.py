"""Search: the terms that a message is indexed under, the terms of a query, and the filters of an audit log.

A term is a field and a normalised value, hashed to 64 bits. A query finds the messages that have all its terms. Both
sides are normalised here and nowhere else.
"""

import re
import unicodedata
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from hashlib import blake2b
from typing import Final, TypeVar
from uuid import UUID

from posthouse.rules import ids, limits
from posthouse.rules.message import MessageState, MessageStatus, Source, check_metadata_pair
from posthouse.rules.refusal import invalid, unreadable_cursor

WORD_CHARACTERS_MIN: Final = 2
WORD_CHARACTERS_MAX: Final = 64
# The words of a subject; later words are not indexed.
WORDS_ENTERED_MAX: Final = 12
# The words of a query.
WORDS_ASKED_MAX: Final = 5
SUBJECT_CHARACTERS_ASKED_MAX: Final = 500

_FIRST_DAY: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LOWEST: Final = UUID(int=0)
_HIGHEST: Final = UUID(int=2**128 - 1)

_WORD: Final = re.compile(r"\w+")

_EnumType = TypeVar("_EnumType", bound=StrEnum)

# In the audit log: a kind of action, or a single action.
_ACTION: Final = re.compile(r"[a-z_]{1,40}(\.[a-z_]{1,60})?")


class SearchField(StrEnum):
    """The field of a term. The values are hashed into stored terms: they never change."""

    RECIPIENT = "recipient"
    SENDER = "sender"
    WORD = "word"
    TAG = "tag"
    TEMPLATE = "template"
    SOURCE = "source"
    CREDENTIAL = "credential"
    STATUS = "status"
    METADATA = "metadata"


@dataclass(frozen=True, slots=True)
class SearchFilters:
    """The filters as given by the client; None means any."""

    status: str | None = None
    recipient: str | None = None
    sender: str | None = None
    subject: str | None = None
    tag: str | None = None
    template: str | None = None
    source: str | None = None
    credential_id: str | None = None
    after: str | None = None
    before: str | None = None
    request_id: str | None = None
    state: str | None = None
    metadata: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class SearchQuery:
    """Matches messages with all of the terms, and with ids from `lowest` up to, not including, `before`.

    Only a final status is a term. Queued messages are found in the schedule.
    """

    terms: tuple[int, ...]
    is_queued: bool
    lowest: UUID
    before: UUID
    request_id: UUID | None = None
    # Not a term: compared with what is found.
    state: MessageState | None = None

    @property
    def is_everything(self) -> bool:
        return not self.terms and not self.is_queued

    def has(self, terms: set[int], status: str) -> bool:
        """Whether a message with these terms and this status matches."""
        if self.is_queued and status != MessageStatus.QUEUED:
            return False
        return terms.issuperset(self.terms) or (terms | {term(SearchField.STATUS, status)}).issuperset(self.terms)

    def cursor(self, position: UUID) -> str:
        """The cursor for the page after the message at the position; valid for the same query only."""
        return urlsafe_b64encode(position.bytes + self._fingerprint()).decode().rstrip("=")

    def position(self, cursor: str) -> UUID:
        try:
            # A cursor has a single valid encoding.
            decoded = b64decode(f"{cursor}{'=' * (-len(cursor) % 4)}", altchars=b"-_", validate=True)
            position = UUID(bytes=decoded[:16])
        except ValueError:
            raise unreadable_cursor() from None
        if self.cursor(position) != cursor:
            raise invalid("`cursor` belongs to another search: leave it out, or repeat the filters that it came with.")
        return position

    def _fingerprint(self) -> bytes:
        rest = f"{self.request_id or ''} {self.state or ''}"
        asked = f"{self.terms} {self.is_queued} {self.lowest} {self.before} {rest}".rstrip()
        return blake2b(asked.encode(), digest_size=5).digest()


@dataclass(frozen=True, slots=True)
class AuditLogFilters:
    """Ids from `lowest` up to, not including, `before`; None is any. `kind` is what an action begins with."""

    kind: str | None = None
    action: str | None = None
    actor: str | None = None
    user_id: UUID | None = None
    lowest: UUID = _LOWEST
    before: UUID = _HIGHEST


def term(field: SearchField, value: str) -> int:
    """The hashed term. Hash collisions have a probability of 1 in 2**64: they are not checked for."""
    digest = blake2b(f"{field.value}\0{value}".encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def words(text: str) -> list[str]:
    """The distinct words of a text, in its order: letters, digits and underscores, without regard to case or width."""
    found = _WORD.findall(unicodedata.normalize("NFKC", text).casefold())
    return list(dict.fromkeys([word[:WORD_CHARACTERS_MAX] for word in found if len(word) >= WORD_CHARACTERS_MIN]))


def address(text: str) -> str:
    """The bare address, without a display name, in lower case."""
    text = text.strip()
    if text.endswith(">"):
        text = text[text.rfind("<") + 1 : -1]
    return text.lower()


def terms_of(
    *,
    sender: str,
    recipients: Iterable[str],
    subject: str,
    tags: Sequence[str] | None,
    template: str | None,
    source: str,
    credential_id: UUID,
    metadata: Mapping[str, str] | None = None,
) -> set[int]:
    """The terms a message is indexed under when it is accepted; its status is added once it is final."""
    found = {
        term(SearchField.SENDER, address(sender)),
        term(SearchField.SOURCE, source),
        term(SearchField.CREDENTIAL, credential_id.hex),
    }
    found.update([term(SearchField.RECIPIENT, address(recipient)) for recipient in recipients])
    found.update([term(SearchField.WORD, word) for word in words(subject)[:WORDS_ENTERED_MAX]])
    found.update([term(SearchField.TAG, tag) for tag in tags or ()])
    if template is not None:
        found.add(term(SearchField.TEMPLATE, template))
    if metadata:
        found.update([metadata_term(name, value) for name, value in metadata.items()])
    return found


def metadata_term(name: str, value: str) -> int:
    return term(SearchField.METADATA, f"{name}\0{value}")


def search_query(filters: SearchFilters) -> SearchQuery:
    """The query for these filters; a Refusal if a filter is invalid."""
    terms: set[int] = set()
    is_queued = False
    if filters.status is not None:
        status = _one_of("status", filters.status, MessageStatus)
        is_queued = status is MessageStatus.QUEUED
        if not is_queued:
            terms.add(term(SearchField.STATUS, status))
    state = None if filters.state is None else _one_of("state", filters.state, MessageState)
    if state is MessageState.SCHEDULED:
        is_queued = True
    elif state is not None:
        terms.add(term(SearchField.STATUS, MessageStatus.FAILED))
    if filters.recipient is not None:
        terms.add(term(SearchField.RECIPIENT, whole_address("recipient", filters.recipient)))
    if filters.sender is not None:
        terms.add(term(SearchField.SENDER, whole_address("sender", filters.sender)))
    if filters.subject is not None:
        terms.update([term(SearchField.WORD, word) for word in _words(filters.subject)])
    if filters.tag is not None:
        terms.add(term(SearchField.TAG, _text("tag", filters.tag, limits.TAG_CHARACTERS_MAX)))
    if filters.template is not None:
        terms.add(term(SearchField.TEMPLATE, _text("template", filters.template, limits.TEMPLATE_NAME_CHARACTERS_MAX)))
    if filters.source is not None:
        terms.add(term(SearchField.SOURCE, _one_of("source", filters.source, Source)))
    if filters.credential_id is not None:
        credential_id = ids.parse(ids.CREDENTIAL, filters.credential_id)
        if credential_id is None:
            raise invalid("`credential_id` is the id of an SMTP credential, as in `credential_id` of a message.")
        terms.add(term(SearchField.CREDENTIAL, credential_id.hex))
    if len(filters.metadata) > limits.METADATA_MAX:
        raise invalid(f"`metadata` has {len(filters.metadata)} filters: at most {limits.METADATA_MAX} are allowed.")
    for name, value in filters.metadata:
        check_metadata_pair(name, value)
        terms.add(metadata_term(name, value))
    lowest = _LOWEST if filters.after is None else time_bound("after", filters.after)
    before = _HIGHEST if filters.before is None else time_bound("before", filters.before)
    request_id = None
    if filters.request_id is not None:
        request_id = ids.parse(ids.REQUEST, filters.request_id)
        if request_id is None:
            raise invalid("`request_id` is the id of a request, as in the header X-Request-ID of its response.")
    return SearchQuery(tuple(sorted(terms)), is_queued, lowest, before, request_id, state)


def whole_address(name: str, given: str) -> str:
    bare = address(given)
    if not 3 <= len(bare) <= limits.ADDRESS_CHARACTERS_MAX or "@" not in bare:
        raise invalid(f"`{name}` is a whole address, such as ada@example.com.")
    return bare


def time_bound(name: str, given: str, or_: str = "") -> UUID:
    """The lowest id of that time; `or_` says what else may be given."""
    try:
        moment = datetime.fromisoformat(given)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        alternative = f", or {or_}" if or_ else ""
        raise invalid(f"`{name}` is a time of RFC 3339, such as 2026-11-15T09:30:00Z{alternative}.")
    # Times out of range are clamped.
    try:
        return min(ids.lowest_id(max(moment, _FIRST_DAY)), _HIGHEST)
    except OverflowError:
        return _LOWEST if moment.year < _FIRST_DAY.year else _HIGHEST


def audit_log_filters(action: str | None, actor: str | None, since: str | None, until: str | None) -> AuditLogFilters:
    """The filters as given by the client; a Refusal if one is invalid."""
    if action is not None and not _ACTION.fullmatch(action):
        raise invalid("`action` is an action such as domain.added, or what it begins with, such as domain.")
    if actor is not None and not (1 <= len(actor) <= limits.ADDRESS_CHARACTERS_MAX and actor.isprintable()):
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


def _one_of(name: str, given: str, choices: type[_EnumType]) -> _EnumType:
    try:
        return choices(given)
    except ValueError:
        raise invalid(f"`{name}` is one of {', '.join(choices)}.") from None


def _text(name: str, given: str, characters_max: int) -> str:
    if not 1 <= len(given) <= characters_max:
        raise invalid(f"`{name}` has 1 to {characters_max} characters: leave it out to see all.")
    return given


def _words(given: str) -> list[str]:
    found = words(given[:SUBJECT_CHARACTERS_ASKED_MAX])
    if not 1 <= len(found) <= WORDS_ASKED_MAX:
        raise invalid(
            f"`subject` takes 1 to {WORDS_ASKED_MAX} whole words of {WORD_CHARACTERS_MIN} characters or more each."
        )
    return found
