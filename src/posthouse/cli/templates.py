"""The command that sends a directory's files to a service as versions of templates, for build pipelines.

A pipeline has an API key. The files of a template have its alias as their name: `welcome.html` or `welcome.mjml`,
`welcome.txt`, `welcome.subject`. What the newest version holds already is not sent again, so a pipeline can run as
often as it likes.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Final

import aiohttp
import typer

from posthouse.cli import output
from posthouse.cli.event_feed import is_private, read, reason
from posthouse.cli.operator import fail
from posthouse.cli.output import AsJson
from posthouse.rules import limits
from posthouse.rules import template as rules_template
from posthouse.rules.refusal import Refusal
from posthouse.rules.template import Engine, Template

template = typer.Typer(no_args_is_help=True)

_COLUMNS = ("alias", "version", "state", "published")

ANSWER_SECONDS_MAX: Final = 30.0
ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
TRIES_MAX: Final = 5
RETRY_SECONDS_MAX: Final = 30.0
# A character takes up to four bytes.
FILE_BYTES_MAX: Final = 4 * limits.TEMPLATE_PART_CHARACTERS_MAX

_PARTS: Final = {".subject": "subject", ".txt": "text", ".html": "html", ".mjml": "html"}


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
    output.write_page(rows, _COLUMNS, as_json=as_json)


class PushFailed(RuntimeError):  # noqa: N818 (reads as what it says)
    """The text says what to do."""


@dataclass(frozen=True, slots=True)
class Pushed:
    """`state` is created, changed, published or unchanged."""

    alias: str
    version: int
    state: str
    is_published: bool


def read_directory(directory: Path, engine: Engine) -> dict[str, Template]:
    """The templates by alias; each is checked as the service checks it."""
    parts: dict[str, dict[str, str]] = {}
    try:
        files = sorted(path for path in directory.iterdir() if path.suffix in _PARTS and path.is_file())
    except OSError as error:
        raise PushFailed(f"{directory} can't be read: {error.strerror}.") from None
    for path in files:
        known = parts.setdefault(path.stem, {})
        part = _PARTS[path.suffix]
        if part in known:
            raise PushFailed(f"{path.stem} has two files for its {part}: keep one of them.")
        known[part] = _content(path)
    if not parts:
        raise PushFailed(
            f"{directory} holds no templates: name them such as welcome.html, welcome.txt, welcome.subject."
        )
    return {alias: _checked(alias, Template(engine=engine, **_complete(found))) for alias, found in parts.items()}


def _complete(found: Mapping[str, str]) -> dict[str, str | None]:
    return {part: found.get(part) or None for part in ("subject", "text", "html")}


def _checked(alias: str, content: Template) -> Template:
    try:
        rules_template.check_alias(alias)
        rules_template.check(content)
    except Refusal as refusal:
        raise PushFailed(f"{alias}: {refusal.text}") from None
    return content


def _content(path: Path) -> str:
    if path.stat().st_size > FILE_BYTES_MAX:
        raise PushFailed(f"{path.name} is larger than a template may be.")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise PushFailed(f"{path.name} is not UTF-8.") from None
    if path.suffix == ".subject":
        return text.strip()
    return _compiled(path, text) if path.suffix == ".mjml" else text


def _compiled(path: Path, source: str) -> str:
    """MJML is compiled here, never by the service."""
    try:
        mrml: Any = import_module("mrml")
    except ModuleNotFoundError:
        raise PushFailed(f"{path.name} needs the package mrml: install posthouse[mjml].") from None
    try:
        made = mrml.to_html(source)
    except OSError as error:
        raise PushFailed(f"{path.name} is no valid MJML: {error}") from None
    return str(made.content)


class TemplatePush:
    def __init__(self, http: aiohttp.ClientSession, url: str, key: str, say: Callable[[str], None]) -> None:
        self._http = http
        self._url = url.rstrip("/")
        self._key = key
        self._say = say

    async def push(self, templates: Mapping[str, Template], *, publish: bool) -> list[Pushed]:
        """In the order of their aliases; what was sent before a failure stays."""
        if not is_private(self._url):
            raise PushFailed(f"{self._url} would receive the key in cleartext: name it with https://.")
        return [await self._push(alias, content, publish=publish) for alias, content in templates.items()]

    async def _push(self, alias: str, content: Template, *, publish: bool) -> Pushed:
        body = {part: source for part, source in content.parts.items() if source}
        if content.engine is not Engine.PLAIN:
            body["engine"] = content.engine.value
        status, answer = await self._ask("GET", f"/v1/templates/{alias}")
        if status == 404:
            await self._done(alias, "POST", "/v1/templates", {"alias": alias, **body, "publish": publish})
            return Pushed(alias, 1, "created", publish)
        if status != 200:
            raise _failed(alias, status, answer)
        found = answer["template"]
        newest = found["versions"][0]
        number: int = newest["version"]
        if _shown(newest) != content:
            made = await self._done(alias, "POST", f"/v1/templates/{alias}/versions", {**body, "publish": publish})
            return Pushed(alias, made["version"], "changed", publish)
        if not publish or found["published_version"] == number:
            return Pushed(alias, number, "unchanged", found["published_version"] == number)
        await self._done(alias, "POST", f"/v1/templates/{alias}/publish", {"version": number})
        return Pushed(alias, number, "published", is_published=True)

    async def _done(self, alias: str, method: str, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        status, answer = await self._ask(method, path, body)
        if status not in (200, 201):
            raise _failed(alias, status, answer)
        return answer

    async def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        """Asks again where the service is busy."""
        for attempt in range(TRIES_MAX):
            status, retry_after, answer = await self._ask_once(method, path, body)
            if status not in (429, 503) or attempt == TRIES_MAX - 1:
                break
            seconds = min(float(retry_after) if retry_after.isdecimal() else 2.0**attempt, RETRY_SECONDS_MAX)
            self._say(f"{self._url} is busy: asking again in {seconds:.0f} s.")
            await asyncio.sleep(seconds)
        return status, answer

    async def _ask_once(
        self, method: str, path: str, body: Mapping[str, Any] | None
    ) -> tuple[int, str, dict[str, Any]]:
        try:
            async with self._http.request(
                method,
                self._url + path,
                json=body,
                headers={"Authorization": f"Bearer {self._key}"},
                timeout=aiohttp.ClientTimeout(total=ANSWER_SECONDS_MAX),
                allow_redirects=False,
            ) as response:
                raw = await read(response, ANSWER_BYTES_MAX)
        except TimeoutError:
            raise PushFailed(f"{self._url} gave no answer within {ANSWER_SECONDS_MAX:.0f} s.") from None
        except aiohttp.InvalidURL:
            raise PushFailed(f"{self._url} is no address: --url is such as https://mail.example.com") from None
        except aiohttp.ClientError as error:
            raise PushFailed(f"{self._url} can't be reached ({reason(error)}).") from None
        try:
            answer = json.loads(raw)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise PushFailed(f"{self._url} is no service of this kind: it answered {response.status} without JSON.")
        return response.status, response.headers.get("Retry-After", ""), answer


def _shown(version: Mapping[str, Any]) -> Template:
    return Template(version["subject"], version["text"], version["html"], Engine(version.get("engine") or Engine.PLAIN))


def _failed(alias: str, status: int, answer: Mapping[str, Any]) -> PushFailed:
    hint = " Use an API key with the scope `templates`." if status == 401 else ""
    return PushFailed(f"{alias}: {answer.get('error') or f'the answer was {status}'}{hint}")
