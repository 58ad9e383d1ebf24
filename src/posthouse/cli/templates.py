"""Commands about templates, for build pipelines."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from posthouse.cli import output
from posthouse.cli.operator import fail
from posthouse.cli.output import AsJson
from posthouse.rules.template import Engine

template = typer.Typer(no_args_is_help=True)

_COLUMNS = ("alias", "version", "state", "published")


@template.callback()
def _family() -> None:
    """Templates."""


@template.command("push")
def push(
    directory: Annotated[
        Path, typer.Argument(help="Files such as welcome.html (or .mjml), welcome.txt, welcome.subject.")
    ],
    url: Annotated[
        str, typer.Option(envvar="POSTHOUSE_URL", help="Where the service's API is.")
    ] = "http://127.0.0.1:8025",
    key: Annotated[
        str, typer.Option(envvar="POSTHOUSE_KEY", show_default=False, help="An API key with the scope templates.")
    ] = "",
    engine: Annotated[Engine, typer.Option(help="What the files are written for.")] = Engine.PLAIN,
    publish: Annotated[bool, typer.Option("--publish", help="Mail is sent with these versions at once.")] = False,
    as_json: AsJson = False,
) -> None:
    """Send a directory's templates to a service, each as a new version if it has changed."""
    if not key:
        fail("Give an API key with the scope `templates` in POSTHOUSE_KEY.")
    import aiohttp

    from posthouse.cli.template_push import Pushed, PushFailed, TemplatePush, read_directory

    async def pushed() -> list[Pushed]:
        found = read_directory(directory, engine)
        async with aiohttp.ClientSession() as http:
            return await TemplatePush(http, url, key, lambda text: typer.echo(text, err=True)).push(
                found, publish=publish
            )

    try:
        made = asyncio.run(pushed())
    except PushFailed as failed:
        fail(str(failed))
    rows = [
        {"alias": row.alias, "version": row.version, "state": row.state, "published": row.is_published} for row in made
    ]
    if as_json:
        return output.write_json(rows)
    return output.write_table(rows, _COLUMNS)
