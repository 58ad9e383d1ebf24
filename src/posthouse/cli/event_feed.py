"""A client that follows a service's feed of events: log in, read page by page, continue from the last cursor.

Only outgoing connections are needed, so it works behind any router. A service that is down or busy is asked again
later; a fault that waiting can't fix ends the command with a sentence that says what to do.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from ipaddress import ip_address
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import aiohttp

from posthouse.rules import ids

PAGE_SIZE: Final = 100
# A page of the longest events is a fifth of this.
PAGE_BYTES_MAX: Final = 4 * 1024 * 1024
ANSWER_SECONDS_MAX: Final = 30.0
# An event is shown ten seconds after it was made: asking more often would bring nothing sooner.
PAUSE_SECONDS: Final = 2.0
RETRY_SECONDS_MAX: Final = 60.0
RETRY_AFTER_SECONDS_MAX: Final = 3_600.0
_ADVICE: Final = ": check that the service runs there, or name another --url."


class FeedClosed(RuntimeError):  # noqa: N818 (reads as what it says)
    """The feed can't be followed, and waiting won't help; the text says what to do."""


class Login(NamedTuple):
    email: str
    password: str


class _Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: dict[str, Any]

    @property
    def error(self) -> str:
        return str(self.body.get("error") or f"the answer was {self.status}")


class _Unavailable(RuntimeError):  # noqa: N818 (reads as what it says)
    """No answer, or an answer that asks to try later."""

    def __init__(self, reason: str, seconds: float | None = None) -> None:
        super().__init__(reason)
        self.seconds = seconds


def is_private(url: str) -> bool:
    """Whether a password can't be read on the way."""
    parts = urlsplit(url)
    with suppress(ValueError):
        return parts.scheme == "https" or ip_address(parts.hostname or "").is_loopback
    return parts.hostname == "localhost"


class Feed:
    """`access` is a login, renewed when its token expires, or only a token. `say` reports what it waits for."""

    def __init__(
        self,
        http: aiohttp.ClientSession,
        url: str,
        access: Login | str,
        say: Callable[[str], None],
        *,
        pause_seconds: float = PAUSE_SECONDS,
    ) -> None:
        self._http = http
        self._url = url.rstrip("/")
        self._access = access
        self._token = access if isinstance(access, str) else ""
        self._say = say
        self._pause_seconds = pause_seconds

    async def events(self, back: timedelta) -> AsyncIterator[dict[str, Any]]:
        """Every event since `back` ago, oldest first, without end. A service that is down at the start ends it."""
        if not is_private(self._url):
            raise FeedClosed(f"{self._url} would receive a password in cleartext: name it with https://.")
        try:
            if isinstance(self._access, Login):
                await self._log_in(self._access)
            first = await self._page(None, 1)
        except _Unavailable as unavailable:
            raise FeedClosed(f"{self._url} {unavailable}{'' if unavailable.seconds else _ADVICE}") from None
        self._say(f"Following the events of {self._url}")
        # A cursor is an event's id, or the lowest id of a moment. The service's clock counts, not ours.
        after = ids.text(ids.EVENT, ids.lowest_id(_date(first) - back))
        while True:
            answer = await self._page_with_retries(after)
            for event in answer.body["events"]:
                yield event
            after = answer.body.get("next_cursor") or after
            if not answer.body.get("has_more"):
                await asyncio.sleep(self._pause_seconds)

    async def _page_with_retries(self, after: str) -> _Answer:
        failures = 0
        while True:
            try:
                return await self._page(after, PAGE_SIZE)
            except _Unavailable as unavailable:
                seconds = unavailable.seconds or min(self._pause_seconds * 2**failures, RETRY_SECONDS_MAX)
                self._say(f"{self._url} {unavailable}; asking again in {seconds:.0f} s.")
                await asyncio.sleep(seconds)
                failures = min(failures + 1, 10)

    async def _page(self, after: str | None, limit: int) -> _Answer:
        parameters = {"limit": str(limit), **({} if after is None else {"after": after})}
        answer = await self._ask("GET", "/v1/events", params=parameters)
        if answer.status == 401 and isinstance(self._access, Login):
            await self._log_in(self._access)
            answer = await self._ask("GET", "/v1/events", params=parameters)
        if answer.status == 401:
            raise FeedClosed(
                "the token was refused: use that of a new login, an API key with the scope `events`, or --email."
            )
        if answer.status != 200 or not isinstance(answer.body.get("events"), list):
            raise FeedClosed(f"{self._url} does not show its events: {answer.error}")
        return answer

    async def _log_in(self, login: Login) -> None:
        answer = await self._ask("POST", "/v1/auth/login", json=login._asdict())
        if answer.status != 200 or not isinstance(answer.body.get("token"), str):
            raise FeedClosed(f"{login.email} could not log in at {self._url}: {answer.error}")
        self._token = answer.body["token"]

    async def _ask(self, method: str, path: str, **given: Any) -> _Answer:
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS_MAX)
        try:
            async with self._http.request(
                method, self._url + path, headers=headers, timeout=timeout, allow_redirects=False, **given
            ) as response:
                raw = await read(response, PAGE_BYTES_MAX)
        except TimeoutError:
            raise _Unavailable(f"gave no answer within {ANSWER_SECONDS_MAX:.0f} s") from None
        except aiohttp.InvalidURL:
            raise FeedClosed(f"{self._url} is no address: --url is such as https://mail.example.com") from None
        except aiohttp.ClientError as error:
            raise _Unavailable(f"can't be reached ({reason(error)})") from None
        answer = _Answer(response.status, response.headers, _object(raw))
        if answer.status == 429 or answer.status >= 500:
            raise _Unavailable(f"asks to try later ({answer.status}: {answer.error})", _seconds(response.headers))
        return answer


async def read(response: aiohttp.ClientResponse, bytes_max: int) -> bytes:
    """The answer's body, at most `bytes_max` of it."""
    body = b""
    async for piece in response.content.iter_any():
        body += piece
        if len(body) >= bytes_max:
            break
    return body[:bytes_max]


def reason(error: aiohttp.ClientError) -> str:
    """The operating system's text for the error, if any."""
    number = getattr(error, "errno", None)
    return os.strerror(number) if isinstance(number, int) and number > 0 else str(error) or type(error).__name__


def _object(raw: bytes) -> dict[str, Any]:
    with suppress(ValueError):
        parsed = json.loads(raw)
        if isinstance(parsed, dict):
            return parsed
    return {}


def _seconds(headers: Mapping[str, str]) -> float | None:
    given = headers.get("Retry-After", "")
    is_number = given.isascii() and given.isdecimal() and len(given) <= 6
    return min(float(given), RETRY_AFTER_SECONDS_MAX) if is_number else None


def _date(answer: _Answer) -> datetime:
    """The service's time; ours when the answer has no date."""
    with suppress(ValueError):
        return parsedate_to_datetime(answer.headers.get("Date", "")).astimezone(UTC)
    return datetime.now(UTC)
