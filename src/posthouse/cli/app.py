"""The `posthouse` command: every family of commands under one name."""

from collections.abc import Iterator, Mapping, MutableMapping
from enum import StrEnum
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, cast

import typer
from typer.core import TyperGroup

from posthouse.cli.output import write_line

if TYPE_CHECKING:
    from typer._click import Command, Context, HelpFormatter

VARIABLE: Final = "_POSTHOUSE_COMPLETE"


class Family(NamedTuple):
    """Where a command, or a group of commands, is found in this package, and its line in `--help`."""

    module: str
    attribute: str
    help: str


# In the order of the help: run the service, then what an operator does most. Each module is imported on use: `--help`
# and a mistyped name read only this table.
FAMILIES: Final[Mapping[str, Family]] = {
    "dev": Family("service", "dev", "Run everything on this machine, with its own PostgreSQL; no mail leaves."),
    "run": Family("service", "run", "Run the service until a signal stops it (Ctrl-C, SIGTERM)."),
    "migrate": Family(
        "service", "migrate", "Bring the database's tables up to date, with partitions for the days ahead."
    ),
    "maintenance": Family("service", "maintenance", "Run maintenance once, now."),
    "doctor": Family("checks", "doctor", "Check that everything is in place; says what to do where it is not."),
    "audit": Family("checks", "audit", "Check every promise on the records and on outside logs."),
    "log": Family("installation", "log", "What operators changed, newest first."),
    "backup": Family("installation", "backup", "Backups: note that one was made."),
    "restore": Family("installation", "restore", "After a restore of the database: what is held, and its release."),
    "secret": Family("installation", "secret", "The installation's secrets: which are in use, which may be removed."),
    "config": Family("installation", "config", "Settings: write a file of them, check them, show them."),
    "account": Family("accounts", "account", "Accounts: who may send."),
    "credits": Family("accounts", "credits_", "Credits: what sending costs."),
    "domain": Family("domains", "domain", "Domains: what an account may send from."),
    "credential": Family("credentials", "credential", "SMTP credentials: a username and a password."),
    "key": Family("credentials", "key", "API keys; each belongs to an SMTP credential."),
    "template": Family("templates", "template", "Templates: send files of a build pipeline to a service."),
    "user": Family("users", "user", "Users of the dashboard."),
    "message": Family("messages", "message", "Messages: a list, a timeline, the content in a browser."),
    "queue": Family("queue", "queue", "The queue: which mail waits, and why; retry, hold, release or cancel it."),
    "address": Family("addresses", "address", "Addresses: where mail leaves from."),
    "pool": Family("addresses", "pool", "Pools of addresses: which accounts send from which."),
    "warmup": Family("addresses", "warmup", "Warm-up of new addresses: today's quotas, and why."),
    "relay": Family("addresses", "relay", "External relays: what takes mail that no address of ours may send."),
    "lane": Family("lanes", "lane", "Lanes: pause and resume them; what they have learnt, undo it, or pin a rate."),
    "postmaster-mail": Family("installation", "postmaster_mail", "Mail to postmaster@ and abuse@."),
    "suppression": Family("suppressions", "suppression", "Suppressions: addresses that an account sends nothing to."),
    "webhook": Family("webhook", "webhook", "Webhooks: an account's endpoint and log; verify a request, listen."),
    "ledger": Family("checks", "ledger", "The ledger: whether it agrees with the messages and the credits."),
    "session": Family("users", "session", "Logins to the dashboard: show and end them."),
    "completion": Family("app", "completion", "Print the completion script of a shell."),
    "clock": Family("installation", "clock", "Service time: whether the database's clock is trusted."),
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
            single = typer.Typer(rich_markup_mode=None, add_completion=False)
            single.command(name, short_help=family.help)(found)
            command = typer.main.get_command(single)
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


# Tracebacks with local variables would print secrets. Help in plain text needs a third of the time of Rich's.
app = typer.Typer(
    name="posthouse",
    cls=LazyGroup,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        write_line(f"posthouse {version('posthouse')}")
        raise typer.Exit


@app.callback()
def posthouse(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Posthouse: a transactional email service."""


class Shell(StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def register_shells() -> None:
    """Before the shell's question is answered. Typer does this only for its own --install-completion."""
    from typer._completion_classes import completion_init

    completion_init()


def completion(shell: Annotated[Shell, typer.Argument(help="Which shell.")]) -> None:
    """Print the completion script of a shell.

    bash: `posthouse completion bash > ~/.local/share/bash-completion/completions/posthouse`.
    zsh: `posthouse completion zsh > "${fpath[1]}/_posthouse"`.
    fish: `posthouse completion fish > ~/.config/fish/completions/posthouse.fish`.
    """
    from typer._completion_shared import get_completion_script

    write_line(get_completion_script(prog_name="posthouse", complete_var=VARIABLE, shell=shell.value))
