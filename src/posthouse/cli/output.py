"""Output of commands: text for people, JSON for programs; both are made from the same plain values."""

import json
import sys
import textwrap
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from itertools import zip_longest
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Annotated, Final

import typer

from posthouse.rules import ids

if TYPE_CHECKING:
    from posthouse.flows.account.domains import DomainView
    from posthouse.flows.account.team import InvitationRow
    from posthouse.flows.account.usage_and_ledger import AccountSummary
    from posthouse.flows.operate.accounts import AccountDetail, AccountRow, ApiKeyRow, CredentialRow, MemberRow
    from posthouse.rules.domain import RecordCheck

Plain = Mapping[str, object]

PIPE_WIDTH: Final = 240
# People copy from these columns: never broken over lines.
_COPIED: Final = frozenset({"id", "username", "name", "email"})
_GAP: Final = "  "
_VALUE_WIDTH_MIN: Final = 20

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
LimitGiven = Annotated[int, typer.Option(min=1, max=1000, help="How many at most.")]
AccountGiven = Annotated[str, typer.Argument(metavar="ACCOUNT", help="The account's name or id (ac_…).")]


def account(row: "AccountRow") -> Plain:
    return {
        "id": ids.text(ids.ACCOUNT, row.id),
        "name": row.name,
        "available": row.available,
        "state": row.state,
        "suspended_at": row.suspended_at,
        "suspended_reason": row.suspended_reason,
        "closed_at": row.closed_at,
        "rate_per_second": row.rate_per_second,
        "rate_burst": row.rate_burst,
        "warmup_exempt": row.warmup_exempt,
        "warmup_limits": row.warmup_limits,
        "warmup_started_on": row.warmup_started_on,
        "warmup_used": row.warmup_used,
        "warmup_day": row.warmup_day,
        "created_at": row.created_at,
    }


def limits(summary: "AccountSummary") -> Plain:
    """The limits in force: the account's own, or else the service's."""
    return {
        "rate_per_second": summary.rate.per_second,
        "rate_burst": summary.rate.burst,
        "warmup_day": summary.warmup.day,
        "warmup_limit_today": summary.warmup.limit,
        "warmup_used_today": summary.warmup.used,
    }


def credential(row: "CredentialRow") -> Plain:
    return {
        "id": ids.text(ids.CREDENTIAL, row.id),
        "username": row.username,
        "name": row.name,
        "is_default": row.is_default,
        "allowed_networks": [str(network) for network in row.allowed_networks],
        "created_at": row.created_at,
        "last_used_at": row.last_used_at,
        "last_used_from": row.last_used_from,
        "previous_password_until": row.previous_until,
        "revoked_at": row.revoked_at,
        "state": "active" if row.revoked_at is None else "revoked",
    }


def key(row: "ApiKeyRow") -> Plain:
    return {
        "id": ids.text(ids.API_KEY, row.id),
        "hint": row.hint,
        "name": row.name,
        "mode": row.mode,
        "may_send": row.may_send,
        "may_read": row.may_read,
        "scopes": [scope.value for scope in row.scopes],
        "sender_domains": list(row.sender_domains),
        "allowed_networks": [str(network) for network in row.allowed_networks],
        "last_used_at": row.last_used_at,
        "last_used_from": row.last_used_from,
        "credential_id": ids.text(ids.CREDENTIAL, row.credential_id),
        "created_at": row.created_at,
        "expires_at": row.expires_at,
        "revoked_at": row.revoked_at,
        "state": _key_state(row),
    }


def _key_state(row: "ApiKeyRow") -> str:
    if row.revoked_at is not None:
        return "revoked"
    return "expired" if row.expires_at is not None and row.expires_at <= datetime.now(UTC) else "active"


def member(row: "MemberRow") -> Plain:
    return {
        "id": ids.text(ids.USER, row.user_id),
        "email": row.email,
        "role": row.role,
        "created_at": row.created_at,
    }


def invitation(row: "InvitationRow") -> Plain:
    return {
        "id": ids.text(ids.INVITATION, row.id),
        "email": row.email,
        "role": row.role,
        "created_at": row.created_at,
        "expires_at": row.expires_at,
    }


def domain(view: "DomainView") -> Plain:
    row = view.domain
    return {
        "id": ids.text(ids.DOMAIN, row.id),
        "name": row.name,
        "verified_at": row.verified_at,
        "vouched": row.is_vouched_for,
        "shared": row.is_shared,
        "checked_at": row.checked_at,
        "missing_since": row.missing_since,
        "ed25519_published": row.ed25519_published,
        "records": [
            {
                "purpose": line.record.purpose,
                "state": line.stage,
                "type": "TXT",
                "name": line.record.name,
                "value": line.record.value or None,
                "required": line.record.is_required,
                "advice": line.advice,
            }
            for line in view.lines
        ],
        "created_at": row.created_at,
    }


def finding(found: "RecordCheck") -> Plain:
    return {
        "name": found.record.name,
        "purpose": found.record.purpose,
        "expected": found.record.value or None,
        "required": found.record.is_required,
        "result": found.result,
        "found": found.found,
        "advice": found.advice,
    }


def account_view(view: "AccountDetail") -> Plain:
    return {
        **account(view.account),
        "granted": view.granted,
        "domains": [
            {"name": row.name, "verified_at": row.verified_at, "missing_since": row.missing_since}
            for row in view.domains
        ],
        "credentials": [credential(row) for row in view.credentials],
        "keys": [key(row) for row in view.keys],
        "users": [member(row) for row in view.members],
    }


def write_json(value: object) -> None:
    sys.stdout.write(json.dumps(value, ensure_ascii=False, indent=2, default=_encoded) + "\n")


def write_line(text: str = "") -> None:
    """Plain and unwrapped, so that copied text is exact."""
    sys.stdout.write(text + "\n")


def write_done(done: str, values: Plain, *, as_json: bool) -> None:
    """What a command changed: a sentence, or for programs its values."""
    if as_json:
        write_json(values)
    else:
        write_line(done)


def write_values(values: Plain) -> None:
    """Names and values, a line each; on a terminal, long values wrap within their column, at whole words."""
    head = max(map(len, values), default=0) + len(_GAP)
    width = max(get_terminal_size().columns - head, _VALUE_WIDTH_MIN) if sys.stdout.isatty() else sys.maxsize
    for name, value in values.items():
        lines = textwrap.wrap(text(value), width, break_long_words=False, break_on_hyphens=False) or [""]
        write_line(f"{name.replace('_', ' '):<{head}}" + f"\n{' ' * head}".join(lines))


def write_page(
    rows: Sequence[Plain], columns: Sequence[str], *, as_json: bool, is_more: bool = False, empty: str = ""
) -> None:
    """A list, or the beginning of one."""
    if as_json:
        return write_json(rows)
    if not rows:
        return write_line(empty or "There are none.")
    write_table(rows, columns)
    if is_more:
        sys.stderr.write("There are more: ask for them with a higher --limit.\n")
    return None


def write_table(rows: Sequence[Plain], columns: Sequence[str], *, title: str = "") -> None:
    """A table no wider than the terminal; where that would break what people copy, a block of lines for each row.

    A pipe has no width: there, a row stays on its line.
    """
    names = [column.replace("_", " ") for column in columns]
    cells = [[text(row[column]) for column in columns] for row in rows]
    if title:
        write_line(title)
    widths = _widths(names, cells, columns)
    if widths is None:
        for row in cells:
            write_line()
            write_values(dict(zip(names, row, strict=True)))
        return
    for row in [names, ["─" * width for width in widths], *cells]:
        folded = [textwrap.wrap(cell, width) or [""] for cell, width in zip(row, widths, strict=True)]
        for line in zip_longest(*folded, fillvalue=""):
            write_line(_GAP.join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip())


def _widths(names: Sequence[str], cells: Sequence[Sequence[str]], columns: Sequence[str]) -> list[int] | None:
    """The columns' widths; None if they don't fit on the terminal with whole words."""
    widths = [max(len(name), *(len(row[at]) for row in cells)) for at, name in enumerate(names)]
    if not sys.stdout.isatty():
        return widths
    available = get_terminal_size().columns - len(_GAP) * (len(columns) - 1)
    least = [
        widths[at] if column in _COPIED else max(len(word) for row in [names, *cells] for word in row[at].split())
        for at, column in enumerate(columns)
    ]
    if sum(least) > available:
        return None
    while sum(widths) > available:
        widths[max(range(len(widths)), key=lambda at: widths[at] - least[at])] -= 1
    return widths


def text(value: object) -> str:
    match value:
        case None | "":
            return "–"
        case bool():
            return "yes" if value else "no"
        case datetime():
            return f"{value:%Y-%m-%d %H:%M:%S} UTC"
        case list() | tuple():
            return ", ".join(map(text, value)) or "–"
        case _:
            return str(value)


def _encoded(value: object) -> str:
    match value:
        case datetime() | date():
            return value.isoformat()
        case _:
            raise TypeError(f"no JSON for {type(value).__name__}")
