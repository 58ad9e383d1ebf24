"""Commands about accounts and their credits."""

import sys
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from posthouse.cli import output
from posthouse.cli.operator import fail, perform, perform_for
from posthouse.cli.output import AccountGiven, AsJson

if TYPE_CHECKING:
    from posthouse.compose.flows import Flows
    from posthouse.flows.account.usage_and_ledger import AccountSummary
    from posthouse.flows.operate.accounts import AccountDetail, AccountRow, NewAccount

account = typer.Typer(no_args_is_help=True)
credits_ = typer.Typer(no_args_is_help=True)

Reason = Annotated[str, typer.Option("--reason", help="Why; recorded with the change.")]

_LIST_COLUMNS: Final = ("id", "name", "state", "available", "suspended_reason", "created_at")
_TABLES: Final = {
    "domains": ("name", "verified_at", "missing_since"),
    "credentials": ("id", "username", "name", "state", "is_default", "allowed_networks"),
    "keys": ("id", "hint", "name", "mode", "may_read", "state", "expires_at"),
    "users": ("id", "email", "role"),
}


@account.command("create")
def create(
    name: Annotated[str, typer.Argument(help="What to call the account; unique.")], as_json: AsJson = False
) -> None:
    """Make an account and its default SMTP credential."""
    made = perform(lambda flows: flows.accounts.create_account(name))
    after = (
        "The password is shown this once: keep it now.\n"
        f"Next: `posthouse credits grant {made.account.name!r} 1000 --reason …` and "
        f"`posthouse domain add {made.account.name!r} example.com`."
    )
    _write_new_credential(made, after, as_json=as_json)


@account.command("list")
def list_(as_json: AsJson = False) -> None:
    """Show all accounts."""
    rows = [output.account(row) for row in perform(lambda flows: flows.accounts.list_accounts())]
    hint = "There are no accounts yet: make one with `posthouse account create NAME`."
    output.write_page(rows, _LIST_COLUMNS, as_json=as_json, empty=hint)


@account.command("show")
def show_(account: AccountGiven, as_json: AsJson = False) -> None:
    """Show an account: balance, limits in force, warm-up, domains, credentials, keys, users."""

    async def both(flows: "Flows") -> "tuple[AccountDetail, AccountSummary]":
        detail = await flows.accounts.account(account)
        return detail, await flows.usage_and_ledger.account(detail.account.id)

    detail, summary = perform(both)
    view = {**output.account_view(detail), "limits": output.limits(summary), "queued": summary.waiting.queued}
    if as_json:
        return output.write_json(view)
    row, tables = detail.account, _TABLES
    output.write_values(
        {
            **{name: view[name] for name in ("id", "name", "state", "available", "granted", "queued")},
            **({"suspended": f"{output.text(row.suspended_at)}: {row.suspended_reason}"} if row.suspended_at else {}),
            "rate": f"{summary.rate.per_second:g} a second, {summary.rate.burst} at once"
            + _whose(row.rate_per_second or row.rate_burst),
            "warm-up": _warmup_text(detail.account, summary),
            "created_at": row.created_at,
        }
    )
    for name, columns in tables.items():
        rows = view[name]
        if isinstance(rows, list) and rows:
            output.write_line()
            output.write_table(rows, columns, title=name)
    return None


def _whose(own: object) -> str:
    return " (its own)" if own else " (the service's default)"


def _warmup_text(row: "AccountRow", summary: "AccountSummary") -> str:
    today = summary.warmup
    if row.warmup_exempt:
        return "none: the account is exempt"
    if today.limit is None:
        return f"over: no limit since day {today.day}" if row.warmup_started_on else "none"
    begun = "" if row.warmup_started_on else "; begins with the first message"
    return f"day {today.day}: {today.used} of {today.limit} recipients today{begun}{_whose(row.warmup_limits)}"


@account.command("suspend")
def suspend(account: AccountGiven, reason: Reason, as_json: AsJson = False) -> None:
    """Block sending; reading still works, queued mail is held."""
    row = perform(lambda flows: flows.accounts.suspend(account, reason))
    done = f"{row.name} is suspended: {row.suspended_reason}"
    output.write_done(done, output.account(row), as_json=as_json)


@account.command("resume")
def resume(account: AccountGiven, as_json: AsJson = False) -> None:
    """Let a suspended account send again."""
    row = perform(lambda flows: flows.accounts.resume(account))
    output.write_done(f"{row.name} may send again.", output.account(row), as_json=as_json)


@account.command("close")
def close(
    account: AccountGiven,
    reason: Reason,
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask for confirmation.")] = False,
    as_json: AsJson = False,
) -> None:
    """End an account's access: credentials, keys and users. Its records stay, and queued mail is held for 7 days.

    Mail that is still queued after that fails, and its credits are returned. `account reopen` lets the account send
    again, with a new credential; keys and users have to be created again.
    """
    found = perform(lambda flows: flows.accounts.account(account)).account
    if not yes:
        if not sys.stdin.isatty():
            fail("nothing was closed: confirm it with --yes")
        if typer.prompt(f"Type the account's name ({found.name}) to close it", err=True) != found.name:
            fail("nothing was closed: that is not the account's name")
    closed = perform(lambda flows: flows.accounts.close_account(account, reason))
    row = closed.account
    if as_json:
        ended = {"credentials": closed.credentials, "keys": closed.keys, "users": closed.members}
        return output.write_json({**output.account(row), "ended": ended})
    output.write_line(
        f"{row.name} is closed: {closed.credentials} credentials, {closed.keys} keys and {closed.members} users ended."
    )
    if row.available:
        output.write_line(
            f"{row.available} credits are left; `posthouse credits grant {row.name!r} -{row.available} --reason …` "
            "takes them back."
        )
    return None


@account.command("reopen")
def reopen(account: AccountGiven, as_json: AsJson = False) -> None:
    """Let a closed account send again, with a new default SMTP credential; held mail is sent."""
    made = perform(lambda flows: flows.accounts.reopen(account))
    after = "The password is shown only now: save it. Keys and users have to be created again."
    _write_new_credential(made, after, as_json=as_json)


def _write_new_credential(made: "NewAccount", after: str, *, as_json: bool) -> None:
    """An account and the password of its new credential, which can't be read again."""
    secret = {"username": made.credential.credential.username, "password": made.credential.password}
    if as_json:
        return output.write_json({**output.account(made.account), "credential": secret})
    output.write_values({"account": output.account(made.account)["id"], "name": made.account.name, **secret})
    return output.write_line(f"\n{after}")


@account.command("reputation")
def reputation_warning(
    account: AccountGiven,
    exempt: Annotated[
        bool | None,
        typer.Option("--exempt/--no-exempt", help="Whether it is only warned, and never suspended automatically."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show how an account behaves: unknown addresses and complaints among its latest results."""
    view = perform(lambda flows: flows.accounts.reputation(account, exempt=exempt))
    status, figures = view.status, view.figures
    if as_json:
        return output.write_json(
            {
                "account": status.name,
                "verdict": view.verdict,
                "tier": status.tier,
                "exempt": status.exempt,
                "suspended_at": status.suspended_at,
                "warned_at": status.warned_at,
                "counted_since": view.counted_since,
                "results": figures.finals,
                "unknown_addresses": figures.unknown,
                "unknown_addresses_percent": round(figures.unknown_percent, 2),
                "complaints": figures.complaints,
                "complaints_percent": round(figures.complaints_percent, 2),
                "erased_addresses": view.erased,
            }
        )
    return output.write_values(
        {
            "account": status.name,
            "verdict": view.verdict,
            "tier": status.tier,
            "exempt": status.exempt,
            "suspended": status.suspended_at,
            "last warning": status.warned_at,
            "counted since": view.counted_since,
            "results": figures.finals,
            "unknown addresses": f"{figures.unknown} ({figures.unknown_percent:.1f} %)",
            "complaints": f"{figures.complaints} ({figures.complaints_percent:.2f} %)",
            "erased addresses": view.erased,
        }
    )


@account.command("limits")
def limits(
    account: AccountGiven,
    rate: Annotated[
        str | None, typer.Option(metavar="N|default", help="Requests a second; default: the service's own.")
    ] = None,
    burst: Annotated[
        str | None, typer.Option(metavar="N|default", help="Requests at once; default: the service's own.")
    ] = None,
    warmup: Annotated[
        str | None,
        typer.Option(metavar="exempt|default|N,N,…", help="Recipients a day, day by day; or exempt; or default."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Set an account's own limits; what is not given stays."""
    if rate is None and burst is None and warmup is None:
        fail("nothing to set: give --rate, --burst or --warmup (`posthouse account show` shows the limits)")
    rate_given, burst_given, warmup_given = _number(rate), _number(burst), _warmup(warmup)
    row = perform(
        lambda flows: flows.accounts.set_limits(
            account, rate_per_second=rate_given, rate_burst=burst_given, warmup=warmup_given
        )
    )
    if as_json:
        return output.write_json(output.account(row))
    return output.write_values(
        {
            "account": row.name,
            "rate_per_second": row.rate_per_second or "the service's own",
            "burst": row.rate_burst or "the service's own",
            "warmup": "exempt" if row.warmup_exempt else row.warmup_limits or "the service's own",
        }
    )


@account.command("pool")
def pool(
    account: AccountGiven,
    pool: Annotated[str | None, typer.Argument(help="The pool that its mail leaves from.")] = None,
    none: Annotated[bool, typer.Option("--none", help="No pool: it uses that of its tier, or `default`.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say which pool of addresses an account's mail leaves from."""
    if (pool is None) is not none:
        fail("give a pool, or --none (`posthouse pool list` shows the pools)")
    perform_for(account, lambda flows, at: flows.sending_addresses.set_account_pool(at, pool))
    where = f"the pool {pool}" if pool else "the pool of its tier, or `default`"
    done = f"The mail of {account} leaves from {where}, within seconds."
    output.write_done(done, {"account": account, "pool": pool}, as_json=as_json)


@credits_.command("grant", context_settings={"ignore_unknown_options": True})
def grant(
    account: AccountGiven,
    amount: Annotated[int, typer.Argument(help="How many; a negative number takes back a mistake.")],
    reason: Reason,
    as_json: AsJson = False,
) -> None:
    """Give an account credits: each pays for a recipient."""
    row = perform(lambda flows: flows.accounts.grant_credits(account, amount, reason))
    done = f"{row.name} has {row.available} credits available."
    output.write_done(done, output.account(row), as_json=as_json)


def _number(given: str | None) -> int | Literal["default"] | None:
    if given is None or given == "default":
        return given  # type: ignore[return-value]
    try:
        return int(given)
    except ValueError:
        fail(f"{given!r} is neither a number nor `default`")


def _warmup(given: str | None) -> list[int] | Literal["default", "exempt"] | None:
    if given is None or given in ("default", "exempt"):
        return given  # type: ignore[return-value]
    try:
        return [int(part) for part in given.split(",")]
    except ValueError:
        fail(f"{given!r} is neither `exempt`, `default` nor numbers separated by commas")
