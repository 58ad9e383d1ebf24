"""Commands about where mail leaves from: addresses, their warm-up and their pools, and external relays.

A relay is a mail service of others; it takes mail where none of our addresses may send it.
"""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from posthouse.cli import output
from posthouse.cli.operator import fail, perform, prompted_password
from posthouse.cli.output import AsJson, Plain
from posthouse.rules.address_warm_up import Change
from posthouse.rules.route import AddressState, Tier

if TYPE_CHECKING:
    from posthouse.flows.operate.relays import RelayRow
    from posthouse.flows.operate.sending_addresses import AddressRow, ChangedAddress, PoolRow, WarmUpView

address = typer.Typer(no_args_is_help=True)
pool = typer.Typer(no_args_is_help=True)
relay = typer.Typer(no_args_is_help=True)

_COLUMNS: Final = ("ip", "hostname", "pool", "state", "listed_by", "findings", "checked_at")
_POOL_COLUMNS: Final = ("name", "tier", "overflow", "relay", "addresses", "accounts")
_WARM_UP_COLUMNS: Final = ("ip", "lane", "day", "quota", "used", "accepted", "why")
_RELAY_COLUMNS: Final = ("name", "host", "port", "username", "per_second", "per_day", "pools")

IpGiven = Annotated[str, typer.Argument(metavar="IP", help="Such as 192.0.2.1 or 2001:db8::1.")]
RelayGiven = Annotated[str, typer.Argument(help="Such as `ses`.")]

_NONE: Final = "No address warms up: `posthouse address add` begins it for a new address, with its first mail."

_WHY: Final = {
    Change.BEGAN: "its first day",
    Change.GREW: "it grew: the day before went well",
    Change.NOT_USED: "the same as before: less than 70 % of it was used",
    Change.SLOWED: "smaller: the provider slowed us down",
    Change.COMPLAINTS: "smaller: too many complaints",
    Change.BLOCKED: "smaller: the provider blocked the address",
    Change.IDLE: "smaller: nothing was sent for 30 days",
}


@address.command("add")
def add(
    ip: IpGiven,
    hostname: Annotated[
        str | None, typer.Argument(help="The name to greet with: the one that its PTR record names.")
    ] = None,
    pool: Annotated[str | None, typer.Option(help="Its pool; `default` if none is given.")] = None,
    warm: Annotated[
        bool, typer.Option("--warm", help="Providers know it: it needs no warm-up, as a new one does.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Send from an address; or again from one that rests or was retired."""
    changed = perform(lambda flows: flows.sending_addresses.add(ip, hostname, pool, is_warm=warm))
    row = changed.address
    if as_json:
        return output.write_json(_plain(row))
    output.write_line(f"Mail of the pool {row.pool} leaves from {row.ip}, as {row.hostname}, within seconds.")
    if not changed.is_local:
        output.write_line(
            f"This machine does not have {row.ip}: a delivery worker uses it only on a machine that has it."
        )
    if row.warms_up_since is not None:
        output.write_line("It warms up: providers get little mail from it at first (`posthouse warmup`).")
    return output.write_line("Next: `posthouse doctor` checks its DNS records.")


@address.command("list")
def list_(as_json: AsJson = False) -> None:
    """Show all addresses, and what the last check found."""
    rows = [_plain(row) for row in perform(lambda flows: flows.sending_addresses.list_addresses())]
    none = "There are none: mail leaves from the machine's own address. Add one with `posthouse address add IP NAME`."
    output.write_page(rows, _COLUMNS, as_json=as_json, empty=none)


@address.command("rest")
def rest(ip: IpGiven, as_json: AsJson = False) -> None:
    """Send nothing more from an address, until it is added again."""
    changed = perform(lambda flows: flows.sending_addresses.rest(ip))
    output.write_done(f"{changed.address.ip} rests. {_instead(changed)}", _plain(changed.address), as_json=as_json)


@address.command("retire")
def retire(ip: IpGiven, as_json: AsJson = False) -> None:
    """Give up an address: nothing more leaves from it, and its pool no longer counts it."""
    changed = perform(lambda flows: flows.sending_addresses.retire(ip))
    output.write_done(f"{changed.address.ip} is retired. {_instead(changed)}", _plain(changed.address), as_json=as_json)


@pool.command("add")
def add_pool(
    name: Annotated[str, typer.Argument(help="Such as `marketing`.")],
    overflow: Annotated[
        str | None, typer.Option(metavar="POOL", help="The pool to use while this one has no address that may send.")
    ] = None,
    tier: Annotated[
        Tier | None,
        typer.Option(help="Accounts of this tier send from it, unless a pool is set for them."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a pool of addresses."""
    made = perform(lambda flows: flows.sending_addresses.add_pool(name, overflow=overflow, tier=tier))
    plain = {"name": made.name, "tier": made.tier, "overflow": made.overflow}
    done = f"The pool {made.name} is made. Next: `posthouse address add IP NAME --pool {made.name}`."
    output.write_done(done, plain, as_json=as_json)


@pool.command("relay")
def set_relay(
    name: Annotated[str, typer.Argument(metavar="POOL", help="Such as `default`.")],
    relay: Annotated[
        str | None, typer.Argument(help="The relay; `posthouse relay list` shows those there are.")
    ] = None,
    none: Annotated[bool, typer.Option("--none", help="No relay: mail that no address may send waits.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say which external relay takes a pool's mail while no address of it or of its overflow may send."""
    if (relay is None) is not none:
        fail("give a relay, or --none (`posthouse relay list` shows the relays)")
    perform(lambda flows: flows.relays.set_pool_relay(name, relay))
    done = (
        f"The pool {name} has no relay: mail that no address may send waits."
        if relay is None
        else f"Mail of the pool {name} that no address may send goes over the relay {relay}, within seconds."
    )
    output.write_done(done, {"name": name, "relay": relay}, as_json=as_json)


@pool.command("list")
def list_pools(as_json: AsJson = False) -> None:
    """Show all pools, with their addresses and the accounts that send from them by choice or tier."""
    rows = [_plain_pool(row) for row in perform(lambda flows: flows.sending_addresses.list_pools())]
    none = "There are none: the first `posthouse address add` makes the pool `default`."
    output.write_page(rows, _POOL_COLUMNS, as_json=as_json, empty=none)


def _instead(changed: "ChangedAddress") -> str:
    row = changed.address
    if not changed.is_last:
        return f"The other addresses of the pool {row.pool} send its mail."
    if row.state is AddressState.RETIRED:
        return f"If the pool {row.pool} has no other address, its mail leaves from the machine's own address."
    return (
        f"No other address of the pool {row.pool} sends: its mail waits, unless the pool has an overflow or a relay. "
        f"`posthouse address add {row.ip}` ends that."
    )


def _plain(row: "AddressRow") -> Plain:
    return {**asdict(row), "ip": str(row.ip)}


def _plain_pool(row: "PoolRow") -> Plain:
    return {
        **asdict(row.pool),
        "addresses": row.addresses,
        "accounts": row.accounts,
        "created_at": row.created_at,
    }


def warmup(as_json: AsJson = False) -> None:
    """Show the warm-up of addresses: the day, today's quota and its use, and why it grew or not."""
    views = perform(lambda flows: flows.sending_addresses.list_warm_ups())
    rows = [_plain_warm_up(view) for view in views]
    if not as_json:
        rows = [{**row, "quota": "warm" if row["is_warm"] else row["quota"]} for row in rows]
    output.write_page(rows, _WARM_UP_COLUMNS, as_json=as_json, empty=_NONE)


def _plain_warm_up(view: "WarmUpView") -> Plain:
    warm_up = view.warm_up
    return {
        "ip": view.ip,
        "lane": warm_up.lane,
        "day": warm_up.day,
        "quota": warm_up.quota,
        "quota_an_hour": warm_up.quota_an_hour,
        "is_warm": warm_up.is_warm,
        "used": view.used,
        "accepted": view.accepted,
        "slowed": view.slowed,
        "change": warm_up.change,
        "why": _WHY[warm_up.change],
    }


@relay.command("add")
def add_relay(
    name: RelayGiven,
    host: Annotated[str, typer.Argument(help="The name of its server, which its certificate must be valid for.")],
    username: Annotated[str, typer.Option(help="Our login there.")],
    port: Annotated[int, typer.Option(help="465: TLS from the first byte; any other: STARTTLS.")] = 587,
    per_second: Annotated[float, typer.Option(help="How many messages it takes per second, at most.")] = 10.0,
    per_day: Annotated[int | None, typer.Option(help="How many it takes per UTC day; the rest waits.")] = None,
    password_file: Annotated[
        Path | None,
        typer.Option(help="Read the password from this file; without it, from standard input or the keyboard."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make an external relay known; or change it. Its password is stored sealed."""
    password = _password(password_file)
    row = perform(
        lambda flows: flows.relays.add(
            name, host, port=port, username=username, password=password, per_second=per_second, per_day=per_day
        )
    )
    done = f"The relay {name} is {host}:{port}. Next: `posthouse pool relay POOL {name}` lets a pool use it."
    output.write_done(done, _plain_relay(row), as_json=as_json)


@relay.command("list")
def list_relays(as_json: AsJson = False) -> None:
    """Show all relays, and the pools that use them."""
    rows = [_plain_relay(row) for row in perform(lambda flows: flows.relays.list_relays())]
    output.write_page(rows, _RELAY_COLUMNS, as_json=as_json, empty="There are none: all mail leaves from here.")


@relay.command("remove")
def remove_relay(name: RelayGiven, as_json: AsJson = False) -> None:
    """Forget a relay that no pool uses, and its password."""
    perform(lambda flows: flows.relays.remove(name))
    output.write_done(f"The relay {name} is removed.", {"name": name}, as_json=as_json)


def _password(file: Path | None) -> str:
    if file is not None:
        try:
            return file.read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            fail(f"the password can't be read from {file}: {error}")
    if not sys.stdin.isatty():
        return sys.stdin.readline().rstrip("\r\n")
    return prompted_password()


def _plain_relay(row: "RelayRow") -> Plain:
    return {
        "name": row.name,
        "host": row.host,
        "port": row.port,
        "username": row.username,
        "per_second": row.per_second,
        "per_day": row.per_day,
        "pools": list(row.pools),
        "created_at": row.created_at,
    }
