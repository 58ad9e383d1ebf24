"""Request bodies: reads them up to a limit, parses and validates them, and refuses them in plain words."""

import asyncio
import difflib
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

import pydantic_core
from pydantic import BaseModel, ValidationError
from starlette.types import Receive, Scope

from posthouse.entrypoints.http.request_head import check_given_once
from posthouse.entrypoints.http.request_limits import InProgress, RequestInProgress
from posthouse.rules import limits
from posthouse.rules.refusal import Code, Refusal, invalid

READ_SECONDS_MAX: Final = 30
# The bound on all incomplete bodies that this process holds at a time.
HELD_BYTES_MAX: Final = 512 * limits.MIB
# Far more than any request needs. Otherwise validation would describe a million errors for a million wrong values.
ENTRIES_MAX: Final = 5_000
# Brackets, braces and commas outside strings: each may cost the parser a hundred bytes.
STRUCTURE_MAX: Final = 20_000
NAME_CHARACTERS_SHOWN_MAX: Final = 100

Model = TypeVar("Model", bound=BaseModel)


class Disconnected(Exception):  # noqa: N818 (it is never reported)
    """The client closed the connection before its request was complete."""


class BodyReader:
    def __init__(self) -> None:
        self.in_progress = InProgress()
        self._held_bytes = 0

    def check_headers(self, scope: Scope, bytes_max: int = limits.HTTP_BODY_BYTES_MAX) -> None:
        """Refuse what can be refused from the headers, before the body is read."""
        headers = dict(scope["headers"])
        length = headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > bytes_max:
            raise _body_too_large(bytes_max)
        check_given_once(scope, b"content-type")
        content_type = headers.get(b"content-type", b"")
        if content_type == b"application/json":
            return
        media_type, _, parameters = content_type.partition(b";")
        if media_type.strip().lower() != b"application/json":
            raise invalid("The Content-Type must be application/json.")
        charset = parameters.strip().lower().replace(b'"', b"")
        if charset.startswith(b"charset=") and charset != b"charset=utf-8":
            raise invalid("The body must be JSON in UTF-8.")

    async def read(
        self,
        receive: Receive,
        bytes_max: int = limits.HTTP_BODY_BYTES_MAX,
        request: RequestInProgress | None = None,
        *,
        is_here: bool = False,
    ) -> bytes:
        """The body; its bytes count for the account, if the request belongs to one.

        A body that has already arrived, as most small ones have, needs no timer.
        """
        if is_here:
            return await self._read(receive, bytes_max, request)
        try:
            # The wait for the first byte counts too: a client may send nothing.
            async with asyncio.timeout(READ_SECONDS_MAX):
                return await self._read(receive, bytes_max, request)
        except TimeoutError:
            raise invalid(f"The body was not complete after {READ_SECONDS_MAX} s: send it faster.") from None

    async def _read(self, receive: Receive, bytes_max: int, request: RequestInProgress | None) -> bytes:
        event = await receive()
        body: bytes = event.get("body", b"")
        if event["type"] == "http.disconnect":
            raise Disconnected
        if event.get("more_body"):
            return await self._read_rest(receive, body, bytes_max, request)
        if len(body) > bytes_max:
            raise _body_too_large(bytes_max)
        return body

    async def _read_rest(
        self, receive: Receive, first: bytes, bytes_max: int, request: RequestInProgress | None
    ) -> bytes:
        chunks = [first]
        size = len(first)
        self._held_bytes += size
        try:
            while True:
                event = await receive()
                if event["type"] == "http.disconnect":
                    raise Disconnected
                chunk: bytes = event.get("body", b"")
                chunks.append(chunk)
                size += len(chunk)
                self._held_bytes += len(chunk)
                if size > bytes_max:
                    raise _body_too_large(bytes_max)
                if request is not None:
                    await request.grow(size, bytes_max)
                if self._held_bytes > HELD_BYTES_MAX:
                    raise _too_many_concurrent_bodies()
                if not event.get("more_body"):
                    return b"".join(chunks)
        finally:
            self._held_bytes -= size


def require_none(body: bytes) -> None:
    """For a route that takes no body; clients that send one anyway may send an empty object."""
    if b"".join(body.split()) not in (b"", b"{}"):
        raise takes_none()


def takes_none() -> Refusal:
    return invalid("This request takes no body: send none, or `{}`.")


def parsed(body: bytes, structure_max: int = STRUCTURE_MAX, entries_max: int = ENTRIES_MAX) -> dict[str, Any]:
    # Each value takes at least one byte, so small bodies can't contain too many.
    if len(body) > structure_max:
        _check_structure(body, structure_max)
    try:
        content = pydantic_core.from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise invalid(f"The body is not valid JSON: {error}.") from error
    if not isinstance(content, dict):
        raise invalid("The body must be a JSON object.")
    if len(body) > entries_max:
        check_entries(content, entries_max)
    return content


def _check_structure(body: bytes, structure_max: int) -> None:
    """Checked before parsing: a body of nothing but brackets takes a hundred times its size once parsed."""
    if _structure(body) <= structure_max:
        return
    # Strings may contain any number of commas. Once escapes are removed, every other piece between quotes is a string.
    pieces = body.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
    if _structure(b"".join(pieces[::2])) > structure_max:
        raise invalid(f"The body has more than {structure_max} values in its lists and objects: send fewer.")


def _structure(text: bytes) -> int:
    return text.count(b",") + text.count(b"[") + text.count(b"{")


def check_entries(content: Mapping[str, Any], entries_max: int = ENTRIES_MAX) -> int:
    """Count what validation goes through: the fields, their entries, and the entries of those."""
    count = len(content)
    for value in content.values() if count <= entries_max else ():
        if isinstance(value, list | dict):
            count += len(value)
            if count > entries_max:
                break
            for item in value if isinstance(value, list) else value.values():
                if isinstance(item, list | dict):
                    count += len(item)
    if count > entries_max:
        raise invalid(f"The body has more than {entries_max} entries in its lists and objects: send fewer.")
    return count


def validated(model: type[Model], content: Mapping[str, Any]) -> Model:
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise invalid(_explained(model, error)) from error


def _explained(model: type[BaseModel], error: ValidationError) -> str:
    details = error.errors(include_url=False, include_input=False, include_context=False)
    # A missing or unknown field first; otherwise the error at the deepest location among a union's branches.
    detail = max(details, key=lambda item: (item["type"] in {"missing", "extra_forbidden"}, len(item["loc"])))
    path = _path(detail["loc"])
    match detail["type"]:
        case "missing":
            return f"`{path}` is required."
        case "extra_forbidden":
            return f"`{path}` is not a field of this request.{suggestion(path, _names(model))}"
        case _:
            expected = [item["msg"].removeprefix("Input should be ") for item in details if _path(item["loc"]) == path]
            return f"`{path}` should be {' or '.join(dict.fromkeys(expected))}."


def _path(location: tuple[int | str, ...]) -> str:
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        # Pydantic puts the branch of a union into the location, which means nothing to clients.
        elif "[" not in part and part not in {"str", "int", "float", "bool"}:
            name = part[:NAME_CHARACTERS_SHOWN_MAX]
            path += f".{name}" if path else name
    return path


def _names(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


def suggestion(given: str, names: Sequence[str]) -> str:
    """What an unknown name may have meant, or the known names."""
    close = difflib.get_close_matches(given.lower(), names, n=1, cutoff=0.6)
    return f" Did you mean `{close[0]}`?" if close else f" It takes {', '.join(names) or 'none'}."


def _body_too_large(bytes_max: int) -> Refusal:
    limit = f"{bytes_max // limits.MIB} MiB" if bytes_max >= limits.MIB else f"{bytes_max // 1024} KiB"
    return Refusal(Code.PAYLOAD_TOO_LARGE, f"The body is larger than {limit}: send less.")


def _too_many_concurrent_bodies() -> Refusal:
    return Refusal(Code.TEMPORARY_FAILURE, "Too many large requests at the same time: try again.", 1)
