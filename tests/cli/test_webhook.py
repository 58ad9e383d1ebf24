"""Webhooks on their receiver's machine: verified, read from the feed, sent on as the service would, and shown."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as some
from typer.testing import CliRunner, Result
from yarl import URL

from posthouse.cli import event_feed, webhook_events, webhook_listener
from posthouse.cli.app import app
from posthouse.cli.event_feed import Feed, FeedClosed, Login
from posthouse.cli.webhook_listener import BODY_BYTES_MAX, CONCURRENT_REQUESTS_MAX, CannotListen, ListenOptions
from posthouse.rules import event, ids
from posthouse.rules.event import EventType, SignatureVerdict, sign
from tests.cli.conftest import environment_of
from tests.cli.test_cli import environment
from tests.support.delivery_steps import open_delivery_steps
from tests.support.eventually import HANG_SECONDS, eventually
from tests.support.server_process import ServerProcess
from tests.support.service import PASSWORD, Tenant
from tests.support.webhook_receiver import WebhookReceiver
from tests.support.webhook_steps import WebhookSteps

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
T = 1_794_726_000
NOW = datetime(2026, 11, 15, 7, 0, tzinfo=UTC)
LOGIN = Login("ada@example.com", "correct horse")


def event_body(number: int = 0, **given: Any) -> bytes:
    """An event's body as the service writes it."""
    usual: dict[str, Any] = {
        "event_id": ids.new_id(NOW, bytes(9) + bytes([number])),
        "type": EventType.BOUNCED,
        "created_at": NOW,
        "message_id": ids.new_message_id(NOW, bytes(10)),
        "position": 0,
        "to": "ada@example.org",
        "sender": "news@example.com",
        "subject": "Grüße",
        "smtp_code": 550,
        "smtp_response": "5.1.1 \x1b[31mno such\r\nmailbox",
    }
    return event.body(**{**usual, **given})


def options(**given: Any) -> ListenOptions:
    usual: dict[str, Any] = {
        "url": "http://127.0.0.1:1", "access": None, "back": timedelta(0), "forward": "", "port": 0, "secret": SECRET,
        "events_max": 0, "as_json": True,
    }  # fmt: skip
    return ListenOptions(**{**usual, **given})


# Checking a request.


@pytest.mark.parametrize(("header", "body", "now", "verdict", "reason"), [
    (sign(SECRET, b"{}", T), b"{}", T + 12, SignatureVerdict.GENUINE, "signed 12 s ago"),
    (sign(SECRET, b"{}", T), b"{}", T - 12, SignatureVerdict.GENUINE, "signed 12 s from now"),
    (sign(SECRET, b"{}", T), b"{}", T + 301, SignatureVerdict.STALE,
     "too old: signed 301 s ago, and 300 s are allowed"),
    (sign(SECRET, b"{}", T), b"{}", T - 301, SignatureVerdict.STALE,
     "too new: signed 301 s from now, and 300 s are allowed"),
    (sign(SECRET, b"{}", T), b"{ }", T, SignatureVerdict.FORGED,
     "wrong signature: another secret signed it, or the body"),
    (sign(SECRET, b"{}", T), b"{}\n", T, SignatureVerdict.FORGED,
     "wrong signature: it fits the body without the line break"),
    ("t=1", b"{}", T, SignatureVerdict.UNREADABLE, "malformed: Service-Signature is t=<unix_seconds>,v1=<64"),
])  # fmt: skip
def test_the_check_of_a_request_is_a_sentence(
    header: str, body: bytes, now: int, verdict: SignatureVerdict, reason: str
) -> None:
    found = webhook_events.check_signature(SECRET, header, body, now)
    assert found.verdict is verdict
    assert found.reason.startswith(reason)


def test_a_secret_without_its_prefix_is_suspected() -> None:
    bare = SECRET.removeprefix("whsec_")
    assert "begins with whsec_" in webhook_events.check_signature(bare, sign(SECRET, b"{}", T), b"{}", T).reason


@given(some.text(), some.text(), some.text(), some.text())
def test_an_event_of_the_feed_is_sent_on_in_the_services_bytes(to: str, sender: str, subject: str, reply: str) -> None:
    body = event_body(to=to, sender=sender, subject=subject, smtp_response=reply)
    assert webhook_events.as_sent(json.loads(body)) == body


def test_a_test_event_is_sent_on_in_the_services_bytes() -> None:
    body = event.test_body(event_id=ids.new_id(NOW, bytes(10)), created_at=NOW)
    assert webhook_events.as_sent(json.loads(body)) == body


def test_control_codes_do_not_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    webhook_events.write(event_body(), ("verified", "green"))
    shown = capsys.readouterr().out
    assert "2026-11-15T07:00:00.000Z  email.bounced  ada@example.org\n" in shown
    assert "smtp_response 5.1.1 \N{REPLACEMENT CHARACTER}[31mno such  mailbox\n" in shown
    assert "\x1b" not in shown
    assert shown.endswith("  verified\n")


@pytest.mark.parametrize("body", [b"", b"\xff", b"[1]", b'{"type":"email.bounced"}', b"[" * 100_000])
def test_a_body_that_is_no_event_is_reported(body: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    webhook_events.write(body)
    assert capsys.readouterr().out.startswith("The body is no event: ")


# The feed.


@dataclass
class FeedServer:
    """The service's side of the feed, on a real socket. `refusals` answer the first requests for events, in order."""

    bodies: list[bytes] = field(default_factory=list)
    refusals: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    logins: int = 0
    asked: list[dict[str, str]] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    page_size: int = 2
    url: str = ""

    async def login(self, request: web.Request) -> web.Response:
        self.logins += 1
        if await request.json() != LOGIN._asdict():
            return web.json_response({"error": "Email or password is wrong.", "code": "unauthorized"}, status=401)
        return web.json_response({"token": f"token-{self.logins}", "expires_at": "later"})

    async def events(self, request: web.Request) -> web.Response:
        self.asked.append(dict(request.query))
        self.tokens.append(request.headers["Authorization"])
        if self.refusals:
            status, headers = self.refusals.pop(0)
            return web.json_response({"error": "Not now.", "code": "x"}, status=status, headers=headers)
        parsed = [json.loads(body) for body in self.bodies]
        after = request.query.get("after", "")
        left = [values for values in parsed if values["id"] > after]
        page = left[: min(self.page_size, int(request.query["limit"]))]
        cursor = page[-1]["id"] if page else after or None
        answer = {"events": page, "next_cursor": cursor, "has_more": len(left) > len(page)}
        # The service's clock is not ours.
        return web.json_response(answer, headers={"Date": "Sun, 15 Nov 2026 07:00:30 GMT"})


@asynccontextmanager
async def opened(server: FeedServer) -> AsyncIterator[FeedServer]:
    application = web.Application()
    application.router.add_post("/v1/auth/login", server.login)
    application.router.add_get("/v1/events", server.events)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await runner.cleanup()


async def followed(
    server: FeedServer,
    count: int,
    access: Login | str = LOGIN,
    back: timedelta = timedelta(minutes=1),
    say: Callable[[str], None] = lambda _: None,
) -> list[bytes]:
    """The feed's first `count` events."""
    found: list[bytes] = []
    async with aiohttp.ClientSession() as http, asyncio.timeout(HANG_SECONDS):
        async for values in Feed(http, server.url, access, say, pause_seconds=0.01).events(back):
            found.append(webhook_events.as_sent(values))
            if len(found) == count:
                break
    return found


async def test_the_feed_is_read_from_page_to_page_in_order() -> None:
    bodies = [event_body(number) for number in range(5)]
    async with opened(FeedServer(bodies)) as server:
        assert await followed(server, 5) == bodies
    assert [len(asked) for asked in server.asked] == [1, 2, 2, 2]
    assert server.asked[2]["after"] == json.loads(bodies[1])["id"]


async def test_earlier_events_are_skipped_by_the_services_clock() -> None:
    async with opened(
        FeedServer([event_body(0), event_body(1, event_id=ids.new_id(NOW + timedelta(minutes=5), bytes(10)))])
    ) as server:
        assert await followed(server, 1, back=timedelta(0)) == server.bodies[1:]
        assert await followed(server, 1, back=timedelta(seconds=31)) == server.bodies[:1]


async def test_an_expired_token_is_renewed() -> None:
    async with opened(FeedServer([event_body()], refusals=[(401, {})])) as server:
        assert await followed(server, 1) == server.bodies
    assert server.logins == 2
    assert server.tokens == ["Bearer token-1", "Bearer token-2", "Bearer token-2"]


async def test_retry_after_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    async with opened(FeedServer([event_body()])) as server:

        def busy_once(text: str) -> None:
            if not said:
                server.refusals.append((503, {"Retry-After": "30"}))
                monkeypatch.setattr(event_feed, "asyncio", SimpleNamespace(sleep=sleep))
            said.append(text)

        assert await followed(server, 1, say=busy_once) == server.bodies
    assert waits == [30]
    assert said[1] == f"{server.url} asks to try later (503: Not now.); asking again in 30 s."


async def test_following_continues_when_the_service_is_back() -> None:
    said: list[str] = []
    async with opened(FeedServer([event_body()])) as server:

        def down_for_a_while(text: str) -> None:
            if not said:
                server.refusals.extend([(500, {}), (502, {}), (503, {})])
            said.append(text)

        assert await followed(server, 1, "token", say=down_for_a_while) == server.bodies
    assert [text.split("(")[1][:3] for text in said[1:]] == ["500", "502", "503"]


async def test_no_password_is_sent_in_cleartext() -> None:
    async with aiohttp.ClientSession() as http:
        feed = Feed(http, "http://mail.example.com", Login("ada@example.com", PASSWORD), print)
        with pytest.raises(FeedClosed, match="name it with https://"):
            await anext(feed.events(timedelta(0)))


async def test_a_service_that_is_down_at_the_start_is_reported() -> None:
    async with opened(FeedServer()) as server:
        pass
    with pytest.raises(FeedClosed, match=r"can't be reached \(Connection refused\): check that the service runs there"):
        await followed(server, 1)


async def test_a_wrong_password_and_a_wrong_token_are_reported() -> None:
    async with opened(FeedServer()) as server:
        with pytest.raises(FeedClosed, match=r"ada@example.com could not log in at .*: Email or password is wrong"):
            await followed(server, 1, Login(LOGIN.email, "wrong"))
        assert server.logins == 1
        server.refusals = [(401, {})]
        with pytest.raises(FeedClosed, match="use that of a new login, an API key with the scope `events`, or --email"):
            await followed(server, 1, "ph_live_abc")
        server.refusals = [(404, {})]
        with pytest.raises(FeedClosed, match=r"does not show its events: Not now\."):
            await followed(server, 1, "token")


# The listener.


@asynccontextmanager
async def listening_to(chosen: ListenOptions) -> AsyncIterator[str]:
    """The listener's address."""
    said: asyncio.Queue[str] = asyncio.Queue()
    task = asyncio.create_task(webhook_listener.listen(chosen, said.put_nowait))
    try:
        yield (await asyncio.wait_for(said.get(), HANG_SECONDS)).removeprefix("Listening on ")
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_the_listener_accepts_genuine_events_and_shows_all(capsys: pytest.CaptureFixture[str]) -> None:
    body = event_body()
    async with listening_to(options()) as url, aiohttp.ClientSession() as http:
        assert (await webhook_listener.send(http, url, SECRET, body)).status == 200
        other = await webhook_listener.send(http, url + "any/path", "whsec_other", body)
        assert (other.status, other.text[:16]) == (400, "wrong signature:")
        async with http.post(url, data=b"{}") as answer:
            assert answer.status == 400
        async with http.get(url) as answer:
            assert answer.status == 405
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["verdict"] for line in shown] == ["genuine", "forged", "unreadable"]
    assert shown[0]["event"] == json.loads(body)
    assert shown[2]["event"] is None


async def test_a_longer_body_than_any_event_is_not_read(capsys: pytest.CaptureFixture[str]) -> None:
    async with listening_to(options()) as url, aiohttp.ClientSession() as http:
        answer = await webhook_listener.send(http, url, SECRET, b"x" * (BODY_BYTES_MAX + 1))
        assert answer.status == 413
    assert capsys.readouterr().out == ""


async def test_slow_senders_hold_a_bounded_number_of_places() -> None:
    async with listening_to(options()) as url, aiohttp.ClientSession() as http:
        port = URL(url).port
        writers = []
        for _ in range(CONCURRENT_REQUESTS_MAX):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n")
            writers.append(writer)

        async def status() -> int | None:
            return (await webhook_listener.send(http, url, SECRET, event_body())).status

        await eventually(status, lambda seen: seen == 503)
        for writer in writers:
            writer.close()
        await eventually(status, lambda seen: seen == 200)


async def test_a_port_in_use_is_reported() -> None:
    async with listening_to(options()) as url:
        taken = URL(url).port
        with pytest.raises(CannotListen, match=f"can't listen on port {taken} .*: name another --port"):
            await webhook_listener.listen(options(port=taken), lambda _: None)


async def test_the_feeds_events_reach_the_listener_verified(capsys: pytest.CaptureFixture[str]) -> None:
    async with opened(FeedServer([event_body(0), event_body(1)])) as server, asyncio.timeout(HANG_SECONDS):
        chosen = options(url=server.url, access=LOGIN, back=timedelta(minutes=1), events_max=2, as_json=False)
        await webhook_listener.listen(chosen, lambda _: None)
    shown = capsys.readouterr().out
    assert shown.count("  verified: signed 0 s ago\n") + shown.count("  verified: signed 1 s ago\n") == 2


# A program under development.


async def test_a_program_gets_what_the_service_would_send(capsys: pytest.CaptureFixture[str]) -> None:
    bodies = [event_body(0), event_body(1)]
    async with (
        opened(FeedServer(bodies)) as server,
        WebhookReceiver(None) as webhook_receiver,
        asyncio.timeout(HANG_SECONDS),
    ):
        forward = f"http://127.0.0.1:{webhook_receiver.port}/status/422"
        await webhook_listener.listen(
            options(url=server.url, access="token", back=timedelta(minutes=1), forward=forward, events_max=2),
            lambda _: None,
        )
    assert [request.body for request in webhook_receiver.requests] == bodies
    for request in webhook_receiver.requests:
        signature = request.headers["service-signature"]
        assert event.verify(SECRET, signature, request.body, int(time.time())) is SignatureVerdict.GENUINE
        assert request.line == "POST /status/422 HTTP/1.1"
        assert request.headers["content-type"] == "application/json"
        assert request.headers["user-agent"] == "Service-Webhook/1.0"
    answers = [json.loads(line)["answer"] for line in capsys.readouterr().out.splitlines()]
    assert [answer["status"] for answer in answers] == [422, 422]


async def test_a_program_that_is_not_running_is_reported() -> None:
    async with WebhookReceiver(None) as webhook_receiver:
        url = f"http://127.0.0.1:{webhook_receiver.port}/"
    async with aiohttp.ClientSession() as http:
        reply = await webhook_listener.send(http, url, SECRET, event_body())
    assert (reply.status, reply.text) == (None, "no answer: Connection refused")


# On the command line.


def typed(*words: str, given: bytes = b"", **settings: str) -> Result:
    others = dict.fromkeys(name for name in os.environ if name.startswith("POSTHOUSE_"))
    done = CliRunner().invoke(app, ["webhook", *words], given, {**others, **environment(**settings)})
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def test_a_request_is_verified_on_the_command_line(tmp_path: Path) -> None:
    body, secret = tmp_path / "body.json", tmp_path / "secret"
    body.write_bytes(event_body())
    secret.write_text(SECRET + "\n")
    header = sign(SECRET, event_body(), T)

    done = typed("verify", str(body), "--header", header, "--secret-file", str(secret), "--at", "2026-11-15T07:00:05Z")
    assert (done.exit_code, done.stdout.splitlines()[0]) == (0, "valid: signed 5 s ago")
    assert "email.bounced  ada@example.org" in done.stdout

    words = ("verify", "--header", f"Service-Signature: {header}", "--at", str(T + 900), "--json")
    done = typed(*words, given=event_body(), WEBHOOK_SECRET=SECRET)
    answer = json.loads(done.stdout)
    assert (done.exit_code, answer["valid"], answer["verdict"]) == (1, False, "stale")
    assert answer["reason"].startswith("too old: signed 900 s ago")
    assert answer["event"] == json.loads(event_body())
    again = typed(*words, given=event_body(), WEBHOOK_SECRET_FILE=str(secret))
    assert again.stdout == done.stdout

    done = typed("verify", "--header", header, "--secret", "whsec_x", "--at", str(T), given=event_body())
    assert (done.exit_code, done.stdout.count("\n")) == (1, 1)
    assert done.stdout.startswith("not valid: wrong signature: ")

    done = typed("verify", "--header", header, given=event_body())
    assert (done.exit_code, done.stdout) == (1, "")
    assert "the secret is missing: set POSTHOUSE_WEBHOOK_SECRET" in done.stderr


@pytest.mark.parametrize(("words", "expected"), [
    (("listen",), "log in with --email, or set POSTHOUSE_TOKEN"),
    (("listen", "--email", "ada@example.com"), "the password is missing: set POSTHOUSE_PASSWORD"),
    (("listen", "--since", "soon"), "--since 'soon' is no length of time: write such as 90s, 30m, 2h or 7d"),
    (("listen", "--forward", "http://127.0.0.1:3000/", "--no-follow"), "remove --no-follow"),
    (("verify", "--header", "x", "--at", "noon"), "'noon' is no time: write Unix seconds"),
    (("verify", "no-such-file", "--header", "x"), "no-such-file can't be read: No such file or directory"),
    (("verify", "--header", "x", "--secret-file", "no-such-file"), "no-such-file can't be read: "),
])  # fmt: skip
def test_a_wrong_option_is_reported_in_one_line(words: tuple[str, ...], expected: str) -> None:
    done = typed(*words)
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert expected in done.stderr


def test_a_login_is_read_from_a_file(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_text("\n")
    by_token = typed("listen", TOKEN_FILE=str(empty))
    by_password = typed("listen", "--email", "ada@example.com", PASSWORD_FILE=str(empty))
    for done in (by_token, by_password):
        assert (done.exit_code, done.stderr) == (1, f"posthouse: {empty} is empty: write the secret into it\n")


async def test_a_real_services_events_are_listened_to_until_ctrl_c(database_url: str, tmp_path: Path) -> None:
    server = ServerProcess(database_url, tmp_path / "server.log")
    await server.start()
    service = await server.open_client()
    try:
        tenant = await service.account()
        stored = await stored_event(tenant)
        words = ["listen", "--url", server.url, "--email", await tenant.user("owner"), "--since", "999999d", "--json"]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "posthouse", "webhook", *words,
            env=environment(PASSWORD=PASSWORD), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        line = json.loads(await asyncio.wait_for(process.stdout.readline(), HANG_SECONDS))
        assert line["verdict"] == "genuine"
        assert webhook_events.as_sent(line["event"]) == stored
        process.send_signal(signal.SIGINT)
        _, errors = await asyncio.wait_for(process.communicate(), HANG_SECONDS)
        assert process.returncode == 0
        lines = errors.decode().splitlines()
        assert lines[0].startswith("The secret of this session is whsec_")
        assert lines[-1] == "Stopped."
        assert not any("Traceback" in line for line in lines)
    finally:
        await service.close()
        server.kill()


async def stored_event(tenant: Tenant) -> bytes:
    """An event of a minute ago, as a delivery worker would have written it."""
    at = datetime.now(UTC) - timedelta(minutes=1)
    event_id, message_id = ids.new_id(at, bytes(10)), ids.new_message_id(at, bytes(10))
    body = event_body(event_id=event_id, message_id=message_id, created_at=at)
    await tenant.service.sql(
        "INSERT INTO events (account_id, id, message_id, position, type, created_at, body)"
        " VALUES ($1, $2, $3, 0, $4, $5, $6)",
        tenant.id, event_id, message_id, EventType.BOUNCED, at, body,
    )  # fmt: skip
    return body


# The operator's view


async def test_an_accounts_endpoint_is_shown_with_its_state(database_url: str) -> None:
    def shown(account: str) -> Any:
        done = CliRunner().invoke(app, ["webhook", "show", account, "--json"], env=environment_of(database_url))
        assert done.exit_code == 0, (done.output, done.exception)
        return json.loads(done.stdout)

    async with open_delivery_steps(database_url) as steps:
        webhook_steps = WebhookSteps(steps)
        account = ids.text(ids.ACCOUNT, webhook_steps.account_id)
        assert await asyncio.to_thread(shown, account) is None
        endpoint = await webhook_steps.save()
        found = await asyncio.to_thread(shown, account)
        assert (found["url"], found["enabled"], found["state"]) == (endpoint.url, True, "new")
        failing = "UPDATE endpoints SET answered_at = created_at, failing_since = now() - interval '2 days'"
        await steps.fetch(failing)
        found = await asyncio.to_thread(shown, account)
        assert (found["state"], found["answered_at"]) == ("failing", found["created_at"])
