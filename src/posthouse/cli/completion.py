"""Completion of commands and options in a shell."""

from enum import StrEnum
from typing import Annotated, Final

import typer

from posthouse.cli.output import write_line

VARIABLE: Final = "_POSTHOUSE_COMPLETE"


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
