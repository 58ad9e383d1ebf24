"""Output of commands: text for people, JSON for programs; both are made from the same plain values."""

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import TYPE_CHECKING, Annotated, Final

import typer

from posthouse.rules import ids

if TYPE_CHECKING:
    from posthouse.flows.account.domains import DomainView
    from posthouse.flows.account.team import InvitationRow
    from posthouse.flows.operate.accounts import AccountDetail, AccountRow, ApiKeyRow, CredentialRow, MemberRow
    from posthouse.rules.domain import RecordCheck

Plain = Mapping[str, object]

PIPE_WIDTH: Final = 240
# People copy from these columns: never broken over lines.
_COPIED: Final = frozenset({"id", "username", "name", "email"})

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
AccountGiven = Annotated[str, typer.Argument(metavar="ACCOUNT", help="The account's name or id (ac_…).")]


def account(row: "AccountRow") -> Plain:
    return {
        "id": ids.text(ids.ACCOUNT, row.id),
        "name": row.name,
        "available": row.available,
        "suspended_at": row.suspended_at,
        "suspended_reason": row.suspended_reason,
        "rate_per_second": row.rate_per_second,
        "rate_burst": row.rate_burst,
        "warmup_exempt": row.warmup_exempt,
        "warmup_limits": row.warmup_limits,
        "warmup_started_on": row.warmup_started_on,
        "warmup_used": row.warmup_used,
        "warmup_day": row.warmup_day,
        "created_at": row.created_at,
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
        "previous_password_until": row.previous_until,
        "revoked_at": row.revoked_at,
    }


def key(row: "ApiKeyRow") -> Plain:
    return {
        "id": ids.text(ids.API_KEY, row.id),
        "hint": row.hint,
        "name": row.name,
        "mode": row.mode,
        "may_send": row.may_send,
        "may_read": row.may_read,
        "allowed_networks": [str(network) for network in row.allowed_networks],
        "last_used_at": row.last_used_at,
        "credential_id": ids.text(ids.CREDENTIAL, row.credential_id),
        "created_at": row.created_at,
        "expires_at": row.expires_at,
        "revoked_at": row.revoked_at,
    }


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


def write_values(values: Plain) -> None:
    width = max(map(len, values), default=0)
    for name, value in values.items():
        write_line(f"{name.replace('_', ' '):<{width}}  {text(value)}")


def write_table(rows: Sequence[Plain], columns: Sequence[str], *, title: str = "") -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title or None, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column.replace("_", " "), overflow="fold", no_wrap=column in _COPIED)
    for row in rows:
        table.add_row(*(Text(text(row[column])) for column in columns))
    # A pipe has no width: there, a row stays on its line.
    Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH).print(table)


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
