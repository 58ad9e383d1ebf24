"""What a change would reach, and whether the operator wants it: by its count, which a person types."""

import sys
from typing import Annotated

import typer

from posthouse.cli import output
from posthouse.cli.operator import fail
from posthouse.cli.output import Plain

DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be changed, and change nothing.")]
Yes = Annotated[bool, typer.Option("--yes", help="Don't ask: for programs.")]


def confirm(text: str, count: int, values: Plain, *, dry_run: bool, yes: bool, as_json: bool) -> bool:
    """Whether the change is to be made. `text` says what it reaches; without --yes, a person types the count."""
    if dry_run or not count:
        output.write_done(text, values, as_json=as_json)
        return False
    if yes:
        return True
    if not sys.stdin.isatty():
        fail(f"{text} Nothing was changed: confirm it with --yes.")
    sys.stderr.write(f"{text}\n")
    if typer.prompt("Type the count to go on", err=True, default="", show_default=False).strip() != str(count):
        fail("that is not the count: nothing was changed")
    return True
