"""Commands about the addresses that mail leaves from, and their pools."""

from typing import TYPE_CHECKING, Annotated, Final

import typer

from posthouse.cli import output
from posthouse.cli.operator import fail, perform
from posthouse.cli.output import AsJson, Plain
from posthouse.rules.route import AddressState, Tier

if TYPE_CHECKING:
    from posthouse.flows.operate.addresses import AddressRow, ChangedAddress, PoolRow

address = typer.Typer(no_args_is_help=True)
pool = typer.Typer(no_args_is_help=True)

_COLUMNS: Final = ("ip", "hostname", "pool", "state", "listed_by", "findings", "checked_at")
_POOL_COLUMNS: Final = ("name", "tier", "overflow", "relay", "addresses", "accounts")

IpGiven = Annotated[str, typer.Argument(metavar="IP", help="Such as 192.0.2.1 or 2001:db8::1.")]


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
    changed = perform(lambda services: services.addresses.add(ip, hostname, pool, is_warm=warm))
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
    rows = [_plain(row) for row in perform(lambda services: services.addresses.list_addresses())]
    none = "There are none: mail leaves as the machine sends by itself. Add one with `posthouse address add IP NAME`."
    output.write_page(rows, _COLUMNS, as_json=as_json, empty=none)


@address.command("rest")
def rest(ip: IpGiven, as_json: AsJson = False) -> None:
    """Send nothing more from an address, until it is added again."""
    changed = perform(lambda services: services.addresses.rest(ip))
    output.write_done(f"{changed.address.ip} rests. {_instead(changed)}", _plain(changed.address), as_json=as_json)


@address.command("retire")
def retire(ip: IpGiven, as_json: AsJson = False) -> None:
    """Give up an address: nothing more leaves from it, and its pool no longer counts it."""
    changed = perform(lambda services: services.addresses.retire(ip))
    output.write_done(f"{changed.address.ip} is retired. {_instead(changed)}", _plain(changed.address), as_json=as_json)


@pool.command("add")
def add_pool(
    name: Annotated[str, typer.Argument(help="Such as `marketing`.")],
    overflow: Annotated[
        str | None, typer.Option(metavar="POOL", help="The pool to use while this one has no address that may send.")
    ] = None,
    tier: Annotated[
        Tier | None, typer.Option(help="Accounts of this conduct send from it, unless they have a pool of their own.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a pool of addresses."""
    made = perform(lambda services: services.addresses.add_pool(name, overflow=overflow, tier=tier))
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
    perform(lambda services: services.relays.set_pool_relay(name, relay))
    done = (
        f"The pool {name} has no relay: mail that no address may send waits."
        if relay is None
        else f"Mail of the pool {name} that no address may send goes over the relay {relay}, within seconds."
    )
    output.write_done(done, {"name": name, "relay": relay}, as_json=as_json)


@pool.command("list")
def list_pools(as_json: AsJson = False) -> None:
    """Show all pools, with their addresses and the accounts that send from them by choice or tier."""
    rows = [_plain_pool(row) for row in perform(lambda services: services.addresses.list_pools())]
    none = "There are none: the first `posthouse address add` makes the pool `default`."
    output.write_page(rows, _POOL_COLUMNS, as_json=as_json, empty=none)


def _instead(changed: "ChangedAddress") -> str:
    row = changed.address
    if not changed.is_last:
        return f"The other addresses of the pool {row.pool} send its mail."
    if row.state is AddressState.RETIRED:
        return f"If the pool {row.pool} has no other address, its mail leaves as the machine sends by itself."
    return (
        f"No other address of the pool {row.pool} sends: its mail waits, unless the pool has an overflow or a relay. "
        f"`posthouse address add {row.ip}` ends that."
    )


def _plain(row: "AddressRow") -> Plain:
    return {
        "ip": str(row.ip),
        "hostname": row.hostname,
        "pool": row.pool,
        "state": row.state,
        "listed_by": list(row.listed_by),
        "findings": list(row.findings),
        "checked_at": row.checked_at,
        "warms_up_since": row.warms_up_since,
        "created_at": row.created_at,
        "changed_at": row.changed_at,
    }


def _plain_pool(row: "PoolRow") -> Plain:
    return {
        "name": row.pool.name,
        "tier": row.pool.tier,
        "overflow": row.pool.overflow,
        "relay": row.pool.relay,
        "addresses": row.addresses,
        "accounts": row.accounts,
        "created_at": row.created_at,
    }
