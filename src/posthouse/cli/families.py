"""The commands by name, imported on use: `--help` and a mistyped name read this table alone."""

from collections.abc import Iterator, Mapping, MutableMapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import typer
from typer.core import TyperGroup

if TYPE_CHECKING:
    from typer._click import Command, Context, HelpFormatter


class Family(NamedTuple):
    """Where a command, or a group of commands, is found in this package, and its line in `--help`."""

    module: str
    attribute: str
    help: str


# In the order of the help: run the service, then what an operator does most.
FAMILIES: Final[Mapping[str, Family]] = {
    "dev": Family("dev", "dev", "Run everything on this machine, with a PostgreSQL of its own; no mail leaves."),
    "run": Family("service", "run", "Run the service until a signal stops it (Ctrl-C, SIGTERM)."),
    "migrate": Family("service", "migrate", "Bring the database's tables up to date, with room for the days ahead."),
    "upkeep": Family("service", "upkeep", "Run upkeep once, now."),
    "doctor": Family("doctor", "doctor", "Check that everything is in place; says what to do where it is not."),
    "audit": Family("audit", "audit", "Check every promise on the records and on outside logs."),
    "log": Family("operator_log", "log", "What operators changed, newest first."),
    "backup": Family("backup", "backup", "Backups: note that one was made."),
    "restore": Family("restore", "restore", "After a restore of the database: what is held, and its release."),
    "secret": Family("secrets", "secret", "The installation's secrets: which are in use, which may be removed."),
    "config": Family("configuration", "config", "Settings: write a file of them, check them, show them."),
    "account": Family("accounts", "account", "Accounts: who may send."),
    "credits": Family("accounts", "credits_", "Credits: what sending costs."),
    "domain": Family("domains", "domain", "Domains: what an account may send from."),
    "credential": Family("credentials", "credential", "SMTP credentials: a username and a password."),
    "key": Family("credentials", "key", "API keys; each belongs to an SMTP credential."),
    "template": Family("templates", "template", "Templates: send files of a build pipeline to a service."),
    "user": Family("users", "user", "Users of the dashboard."),
    "message": Family("messages", "message", "Messages: a list, a timeline, the content in a browser."),
    "queue": Family("queue", "queue", "The queue: what waits, and why; try it now, hold, release or cancel it."),
    "address": Family("addresses", "address", "Addresses: where mail leaves from."),
    "pool": Family("addresses", "pool", "Pools of addresses: which accounts send from which."),
    "warmup": Family("warm_ups", "warmup", "Warm-up of new addresses: today's allowances, and why."),
    "relay": Family("relays", "relay", "External relays: what takes mail that no address of ours may send."),
    "lane": Family("lanes", "lane", "Lanes: pause and resume them; what they have learnt, undo it, or pin a rate."),
    "inbox": Family("inbox", "inbox", "Inbox: mail to postmaster@ and abuse@."),
    "suppression": Family("suppressions", "suppression", "Suppressions: addresses that an account sends nothing to."),
    "webhook": Family("webhook", "webhook", "Webhooks: an account's endpoint and log; verify a request, listen."),
    "ledger": Family("ledger", "ledger", "The ledger: whether it agrees with the messages and the credits."),
    "session": Family("sessions", "session", "Logins to the dashboard: show and end them."),
    "completion": Family("completion", "completion", "Print the completion script of a shell."),
    "clock": Family("clock", "clock", "Service time: whether the database's clock is believed."),
}


class _Commands(Mapping[str, "Command"]):
    """The commands of FAMILIES, each imported when it is looked up."""

    def __getitem__(self, name: str) -> "Command":
        family = FAMILIES[name]
        found = getattr(import_module(f"posthouse.cli.{family.module}"), family.attribute)
        if isinstance(found, typer.Typer):
            found.info.help, found.rich_markup_mode = family.help, None
            command: Command = typer.main.get_group(found)
        else:
            alone = typer.Typer(rich_markup_mode=None, add_completion=False)
            alone.command(name, short_help=family.help)(found)
            command = typer.main.get_command(alone)
        command.name = name
        return command

    def __iter__(self) -> Iterator[str]:
        return iter(FAMILIES)

    def __len__(self) -> int:
        return len(FAMILIES)


class LazyGroup(TyperGroup):
    """The group of the commands in FAMILIES."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = cast("MutableMapping[str, Command]", _Commands())

    def list_commands(self, ctx: "Context") -> list[str]:  # noqa: ARG002 (the shape of Click's method)
        return list(FAMILIES)

    def format_commands(self, ctx: "Context", formatter: "HelpFormatter") -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, family.help) for name, family in FAMILIES.items()])
