"""The command about the warm-up of addresses."""

from typing import TYPE_CHECKING, Final

from posthouse.cli import output
from posthouse.cli.operator import perform
from posthouse.cli.output import AsJson, Plain
from posthouse.rules.address_warm_up import Change

if TYPE_CHECKING:
    from posthouse.flows.operate.address_warm_ups import WarmUpView

_COLUMNS: Final = ("ip", "lane", "day", "allowance", "used", "taken", "why")
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


def warmup(as_json: AsJson = False) -> None:
    """Show the warm-up of addresses: the day, today's allowance and its use, and why it grew or not."""
    views = perform(lambda services: services.address_warm_ups.list_today())
    rows = [_plain(view) for view in views]
    if not as_json:
        rows = [{**row, "allowance": "warm" if row["is_warm"] else row["allowance"]} for row in rows]
    output.write_page(rows, _COLUMNS, as_json=as_json, empty=_NONE)


def _plain(view: "WarmUpView") -> Plain:
    warm_up = view.warm_up
    return {
        "ip": view.ip,
        "lane": warm_up.lane,
        "day": warm_up.day,
        "allowance": warm_up.allowance,
        "allowance_an_hour": warm_up.allowance_an_hour,
        "is_warm": warm_up.is_warm,
        "used": view.used,
        "taken": view.taken,
        "slow": view.slow,
        "change": warm_up.change,
        "why": _WHY[warm_up.change],
    }
