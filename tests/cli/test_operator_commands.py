"""Commands that operators need: lists, users, closing an account, limits in force, and helpful answers."""

import asyncio
import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import typer
from typer.testing import CliRunner

from posthouse.cli.app import app
from posthouse.config.text import generated
from posthouse.rules import ids
from tests.cli.conftest import environment_of
from tests.cli.test_cli import COMMAND_SECONDS_MAX, environment
from tests.support import preloaded
from tests.support.nameserver import Nameserver
from tests.support.service import service_settings

HELP_SECONDS_MAX = 0.3
DATABASE_SECONDS_MAX = 0.5
# On a slower machine, or a shared one: this many times the import of asyncio.
HELP_IMPORTS_MAX = 4.0
DATABASE_IMPORTS_MAX = 10.0
NONE: Mapping[str, str] = {}


class Operator:
    """Types commands against one database that all tests of this file share; each test has its own accounts."""

    def __init__(self, database_url: str) -> None:
        self.environment = environment_of(database_url)
        self.database_url = database_url

    def type(self, *words: str, status: int = 0, given: str = "", settings: Mapping[str, str] = NONE) -> str:
        named = {f"POSTHOUSE_{name}": value for name, value in settings.items()}
        done = CliRunner().invoke(app, words, env={**self.environment, **named}, input=given)
        assert done.exit_code == status, (words, done.output, done.exception)
        return done.output

    def json(self, *words: str) -> Any:
        return json.loads(self.type(*words, "--json"))

    def account(self, name: str) -> str:
        self.type("account", "create", name)
        return name


@pytest.fixture(scope="module")
def operator(new_database: Callable[[], str]) -> Operator:
    return Operator(new_database())


def test_an_account_from_its_creation_to_its_suspension(operator: Operator) -> None:
    made = operator.json("account", "create", "Acme")
    assert made["id"].startswith("ac_")
    assert made["credential"]["password"]
    assert "already" in operator.type("account", "create", "acme", status=1)

    assert "other than 0" in operator.type("credits", "grant", "Acme", "0", "--reason", "x", status=1)
    assert "500 credits" in operator.type("credits", "grant", "Acme", "500", "--reason", "start")
    assert operator.json("credits", "grant", made["id"], "-100", "--reason", "typing error")["available"] == 400

    limits = operator.json("account", "limits", "Acme", "--rate", "5", "--warmup", "10,20")
    assert (limits["rate_per_second"], limits["warmup_limits"]) == (5, [10, 20])
    assert "nothing to set" in operator.type("account", "limits", "Acme", status=1)
    assert "neither" in operator.type("account", "limits", "Acme", "--warmup", "soon", status=1)

    operator.type("account", "suspend", "Acme", "--reason", "spam")
    listed = operator.type("account", "list")
    assert made["id"] in listed
    assert "spam" in listed
    operator.type("account", "resume", "Acme")
    (view,) = [view for view in operator.json("account", "list") if view["id"] == made["id"]]
    assert view["suspended_at"] is None


def test_secrets_are_shown_once_and_end_when_revoked(operator: Operator) -> None:
    account = operator.account("secrets")
    credential = operator.json("credential", "create", account, "web", "--allow", "192.0.2.0/24")
    assert credential["allowed_networks"] == ["192.0.2.0/24"]
    options = ("--test", "--read", "--expires", "90d", "--credential", credential["username"])
    key = operator.json("key", "create", account, *options)
    assert key["secret"].startswith("ph_test_")
    assert "is no time" in operator.type("key", "create", account, "--expires", "soon", status=1)
    password, email = "correct horse battery", "ada@secrets.example.com"
    operator.type("user", "create", account, email.title(), "--password-stdin", given=f"{password}\n")
    words = ("user", "password", email, "--password-stdin")
    assert "0 of their sessions ended" in operator.type(*words, given="another battery\n")
    assert "12 to 256" in operator.type(*words, given="short\n", status=1)
    assert "no second factor" in operator.type("user", "totp-off", email, status=1)
    absent = "bob@secrets.example.com"
    assert f"no user {absent}" in operator.type("user", "totp-off", absent, status=1)

    assert operator.json("key", "rotate", account, key["id"], "--overlap", "60")["secret"] != key["secret"]
    assert operator.json("credential", "rotate", account, credential["username"])["previous_password_until"]
    operator.type("key", "revoke", account, key["id"])
    operator.type("credential", "revoke", account, credential["username"])
    shown = operator.json("account", "show", account)
    assert shown["keys"][0]["revoked_at"]
    assert shown["users"][0]["email"] == email
    output = json.dumps(shown) + operator.type("account", "show", account)
    for secret in (credential["password"], key["secret"], password):
        assert secret not in output


async def test_a_domain_is_verified_through_dns_or_by_the_operator(operator: Operator) -> None:
    async def typed(*words: str, status: int = 0) -> str:
        return await asyncio.to_thread(operator.type, "domain", *words, status=status, settings=resolved)

    account = await asyncio.to_thread(operator.account, "domains")
    async with Nameserver() as nameserver:
        resolved = {"SERVICE__RESOLVERS": f"127.0.0.1:{nameserver.port}"}
        records = json.loads(await typed("add", account, "example.com", "--json"))["records"]
        missing = await typed("verify", account, "example.com", status=1)
        assert "is not verified" in missing
        assert records[0]["value"] in missing
        assert [record["required"] for record in records] == [True, True, False, False, False]
        assert "(recommended)" in missing
        to_publish = [record for record in records if record["value"]]
        for record in to_publish:
            nameserver.zone[record["name"]] = [record["value"]]
        found = json.loads(await typed("verify", account, "example.com", "--json"))
        assert found["verified_at"]
        assert {finding["purpose"]: finding["result"] for finding in found["findings"]} == {
            **dict.fromkeys(("ownership", "dkim_rsa", "dkim_ed25519", "dmarc"), "found"),
            "return_path": "missing",
        }
        asked = len(nameserver.asked)
        await typed("add", account, "example.net")
        assert json.loads(await typed("verify", account, "example.net", "--vouched", "--json"))["vouched"]
        assert len(nameserver.asked) == asked
    listed = await typed("list", account, "--records")
    for record in to_publish:
        assert record["value"] in listed
    rotated = json.loads(await typed("rotate", account, "example.com", "--json"))["records"]
    assert [record["purpose"] for record in rotated if record["state"] == "pending"] == ["dkim_rsa", "dkim_ed25519"]
    await typed("remove", account, "example.com")
    assert "has no domain" in await typed("remove", account, "example.com", status=1)


def test_keys_are_listed_with_their_state(operator: Operator) -> None:
    account = operator.account("keys")
    assert "make one with `posthouse key create" in operator.type("key", "list", account)
    live = operator.json("key", "create", account, "--name", "web shop")
    operator.type("key", "create", account, "--test", "--expires", "2020-01-01", status=1)
    gone = operator.json("key", "create", account, "--read")
    operator.type("key", "revoke", account, gone["id"])
    listed = operator.json("key", "list", account)
    assert [(key["id"], key["state"]) for key in listed] == [(gone["id"], "revoked"), (live["id"], "active")]
    assert [key["id"] for key in operator.json("key", "list", account, "--limit", "1")] == [gone["id"]]
    assert live["id"] in operator.type("key", "list", account)
    assert live["secret"] not in operator.type("key", "list", account)


def test_credentials_are_listed_with_their_state(operator: Operator) -> None:
    account = operator.account("credentials")
    made = operator.json("credential", "create", account, "mailer")
    listed = operator.json("credential", "list", account)
    assert [(row["name"], row["state"]) for row in listed] == [("mailer", "active"), ("default", "active")]
    revoked = operator.json("credential", "revoke", account, made["username"])
    assert revoked["id"] == made["id"]
    assert operator.json("credential", "list", account)[0]["state"] == "revoked"


def test_users_are_listed_change_their_role_and_are_removed(operator: Operator) -> None:
    account = operator.account("users")
    assert operator.json("user", "list", account) == []
    for name, role in (("ada", "owner"), ("bob", "viewer")):
        words = ("user", "create", account, f"{name}@users.example.com", "--role", role, "--password-stdin")
        operator.type(*words, given="correct horse battery\n")
    assert [user["email"] for user in operator.json("user", "list", account)] == [
        "bob@users.example.com",
        "ada@users.example.com",
    ]
    assert "last owner" in operator.type("user", "role", account, "ada@users.example.com", "viewer", status=1)
    assert operator.json("user", "role", account, "Bob@users.example.com", "owner")["role"] == "owner"
    ada = operator.json("user", "list", account)[1]["id"]
    assert operator.json("user", "role", account, ada, "admin")["role"] == "admin"
    operator.type("user", "remove", account, "ada@users.example.com")
    assert "no such member" in operator.type("user", "remove", account, ada, status=1)
    assert "no such member" in operator.type("user", "remove", account, "eve@users.example.com", status=1)
    assert "last owner" in operator.type("user", "remove", account, "bob@users.example.com", status=1)


def test_a_password_is_asked_for_after_the_address_is_checked(operator: Operator) -> None:
    account = operator.account("passwords")
    typed = "correct horse battery\ncorrect horse battery\n"
    for words in (
        ("user", "create", account, "not an address"),
        ("user", "create", "absent", "ada@passwords.example.com"),
        ("user", "password", "unknown@passwords.example.com"),
    ):
        assert "Password" not in operator.type(*words, status=1, given=typed)
    assert "Password" in operator.type("user", "create", account, "ada@passwords.example.com", given=typed)
    again = operator.type("user", "create", account, "ada@passwords.example.com", status=1, given=typed)
    assert "invite them" in again
    assert "Password" not in again


def test_a_user_is_invited_with_a_token_that_is_shown_once_and_said_how_to_use(operator: Operator) -> None:
    account = operator.account("invitations")
    words = ("user", "invite", account, "Ada@invitations.example.com")
    made = operator.json(*words, "--role", "viewer")
    assert (made["email"], made["role"], made["link"]) == ("ada@invitations.example.com", "viewer", None)
    assert len(made["token"]) == 43
    assert "curl http://127.0.0.1:8025/v1/invitations/accept" in operator.type(*words)
    again = operator.type(*words, settings={"HTTP__PUBLIC_URL": "https://mail.example.com"})
    assert "https://mail.example.com/invitation#" in again
    assert "curl https://mail.example.com/v1/invitations/accept" in again
    assert made["token"] not in again
    assert "no account 'absent'" in operator.type("user", "invite", "absent", "ada@example.com", status=1)
    assert "`email` has no @" in operator.type("user", "invite", account, "ada", status=1)


def test_an_account_is_shown_with_the_limits_in_force(operator: Operator) -> None:
    account = operator.account("limits")
    defaults = {"LIMITS__RATE_PER_SECOND": "7", "LIMITS__WARMUP_LIMITS": "11,12"}
    shown = operator.type("account", "show", account, settings=defaults)
    assert "7 a second, 40 at once (the service's default)" in shown
    assert "day 1: 0 of 11 recipients today; begins with the first message (the service's default)" in shown
    operator.type("account", "limits", account, "--rate", "5", "--warmup", "exempt")
    shown = operator.type("account", "show", account)
    assert "5 a second, 40 at once (its own)" in shown
    assert "none: the account is exempt" in shown
    view = operator.json("account", "show", account)
    assert (view["limits"]["rate_per_second"], view["limits"]["rate_burst"]) == (5, 40)
    assert view["limits"]["warmup_limit_today"] is None


def test_the_log_of_an_accounts_webhook_is_shown(operator: Operator) -> None:
    account = operator.account("webhooks")
    assert "Nothing was sent" in operator.type("webhook", "deliveries", account)
    assert operator.json("webhook", "deliveries", account, "--message", "em_nonsense") == []

    async def save_and_ping() -> None:
        from posthouse.compose.flows import open_flows
        from posthouse.rules.credential import OPERATOR

        async with open_flows(service_settings(operator.database_url)) as flows:
            account_id = await flows.accounts.account_id(account)
            await flows.endpoints.save_webhook(account_id, "https://hooks.example.com/in", (), OPERATOR, enabled=True)
            await flows.endpoints.ping(account_id)

    asyncio.run(save_and_ping())
    [delivery] = operator.json("webhook", "deliveries", account)
    assert (delivery["type"], delivery["status"]) == ("webhook.test", "pending")
    assert delivery["id"] in operator.type("webhook", "deliveries", account)


def test_a_closed_account_has_no_access_left_and_can_be_reopened(operator: Operator) -> None:
    account = operator.account("closing")
    operator.type("credits", "grant", account, "70", "--reason", "start")
    operator.type("key", "create", account)
    operator.type("user", "create", account, "ada@closing.example.com", "--password-stdin", given="a long password\n")
    operator.type("user", "invite", account, "bob@closing.example.com")
    assert "confirm it with --yes" in operator.type("account", "close", account, "--reason", "left", status=1)
    assert operator.json("account", "show", account)["state"] == "active"

    closed = operator.json("account", "close", account, "--reason", "left", "--yes")
    assert closed["ended"] == {"credentials": 1, "keys": 1, "users": 1}
    assert (closed["state"], closed["suspended_reason"]) == ("closed", "closed: left")
    view = operator.json("account", "show", account)
    assert view["available"] == 70
    assert view["users"] == []
    assert {row["state"] for row in (*view["keys"], *view["credentials"])} == {"revoked"}
    assert asyncio.run(_invitations(operator.database_url, view["id"])) == 0
    assert asyncio.run(_log(operator.database_url, view["id"]))[-1] == "account.closed"
    assert "already closed" in operator.type("account", "close", account, "--reason", "left", "--yes", status=1)
    assert "`account reopen`" in operator.type("account", "resume", account, status=1)

    reopened = operator.json("account", "reopen", account)
    assert (reopened["state"], reopened["suspended_at"]) == ("active", None)
    [new, old] = operator.json("credential", "list", account)
    assert (new["username"], new["is_default"]) == (reopened["credential"]["username"], True)
    assert (old["state"], old["is_default"]) == ("revoked", False)
    assert "not closed" in operator.type("account", "reopen", account, status=1)


def test_the_account_that_sends_the_services_mail_is_not_closed(operator: Operator) -> None:
    account = operator.account("sends service mail")
    for named in (account, operator.json("account", "show", account)["id"]):
        settings = {"SERVICE__SENDER": "a@mail.example.com", "SERVICE__SENDER_ACCOUNT": named}
        words = ("account", "close", account, "--reason", "left", "--yes")
        assert "service.sender_account" in operator.type(*words, status=1, settings=settings)
    assert operator.json("account", "show", account)["state"] == "active"


def test_a_suspended_account_is_closed_and_keeps_its_reason(operator: Operator) -> None:
    account = operator.account("suspended and closed")
    operator.type("account", "suspend", account, "--reason", "spam")
    assert "0 users ended" in operator.type("account", "close", account, "--reason", "left", "--yes")
    assert operator.json("account", "show", account)["suspended_reason"] == "spam"


def test_no_table_is_wider_than_the_terminal(operator: Operator, tmp_path: Path) -> None:
    account = operator.account("an account with a long name")
    for number in range(3):
        operator.type("key", "create", account, "--name", f"a key with a long name, number {number}")
    given = {name: value for name, value in operator.environment.items() if value is not None}
    for columns in (80, 60):
        lines = _on_a_terminal(columns, tmp_path, given, "account", "show", account).splitlines()
        assert max(map(len, lines)) <= columns, lines
        assert any(account in line for line in lines)
    wide = operator.type("key", "list", account)
    assert len(wide.splitlines()) == 5, "in a pipe, a row stays on its line"


def test_a_database_that_cannot_be_used_is_answered_with_why(operator: Operator) -> None:
    base = operator.database_url.rpartition("@")[2]
    for url, text in (
        (f"postgresql://unknown:hunter2@{base}", "refuses the user"),
        (f"{operator.database_url.rpartition('/')[0]}/absent", "no such database"),
        ("postgresql://posthouse@no-such-host.invalid/posthouse", "correct the host"),
    ):
        said = operator.type("account", "list", status=1, settings={"DATABASE__URL": url})
        assert text in said
        assert "hunter2" not in said


def test_another_seal_key_is_found_by_doctor(operator: Operator) -> None:
    account = operator.account("sealed")
    operator.type("domain", "add", account, "sealed.example.com")
    other = f"{operator.environment['POSTHOUSE_SECRETS__SEAL_KEY_ACTIVE']}:{generated().seal_keys['1']}"
    said = operator.type("doctor", status=1, settings={"SECRETS__SEAL_KEYS": other, "DELIVERY__OUTBOUND": "capture"})
    assert "is not the key that sealed them" in said
    assert "from your copy of the settings" in said
    assert "config init" not in said


@pytest.mark.parametrize("name", ["SECRETS__PEPPER", "SECRETS__SEAL_KEYS"])
def test_a_short_secret_is_never_answered_with_new_secrets(operator: Operator, name: str) -> None:
    said = operator.type("account", "list", status=1, settings={name: "1:c2hvcnQ="})
    assert "from your copy of the settings" in said
    assert "config init" not in said


def test_a_port_that_does_not_exist_is_refused(operator: Operator) -> None:
    assert "Invalid value for '--port': Input should be less than or equal to 65535" in operator.type(
        "run", "--port", "99999", status=2
    )


@pytest.mark.parametrize(
    "parts", [["delivery"], ["dispatch"], ["http", "maintenance", "delivery"], ["notification"]], ids=" ".join
)
def test_parts_that_share_a_stream_in_memory_must_run_together(operator: Operator, parts: list[str]) -> None:
    said = operator.type("run", *parts, status=1)
    assert said.startswith("posthouse: with the stream in memory, dispatch, delivery and notification work in one")
    assert "`posthouse run dispatch delivery notification`" in said
    assert said.count("\n") == 1


def test_tracing_without_its_extra_is_refused_with_what_to_install(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("opentelemetry", *(name for name in sys.modules if name.startswith("opentelemetry."))):
        monkeypatch.setitem(sys.modules, name, None)
    said = operator.type("run", "maintenance", status=1, settings={"TRACING__SHARE": "0.5"})
    assert 'install "posthouse[otel]"' in said
    assert said.count("\n") == 1


def test_settings_are_written_for_their_purpose_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("POSTHOUSE_")]:
        monkeypatch.delenv(name)
    run = CliRunner().invoke
    plain = run(app, ["config", "init", "--file", "plain.toml"])
    assert "Next: set url under [database] in it, then run `posthouse migrate`" in plain.output
    for kind in ("laptop", "server", "fleet"):
        made = run(
            app, ["config", "init", "--for", kind, "--file", f"{kind}.toml", "--database-url", "postgresql://db/p"]
        )
        assert made.exit_code == 0, made.output
        assert "set url" not in made.output
        checked = run(app, ["config", "check", "--file", f"{kind}.toml"])
        assert checked.exit_code == 0, checked.output
    assert 'outbound = "capture"' in Path("laptop.toml").read_text()
    assert "replicas = 3" in Path("fleet.toml").read_text()

    text = Path("server.toml").read_text()
    Path("server.toml").write_text(text.replace("#port = 8025", 'port = "high"').replace("#pool_max", "pol_max"))
    wrong = run(app, ["config", "check", "--file", "server.toml"])
    assert wrong.exit_code == 1
    lines = [number for number, line in enumerate(Path("server.toml").read_text().splitlines(), 1) if "pol_max" in line]
    assert f"server.toml, line {lines[0]}: database.pol_max is not a setting: did you mean pool_max?" in wrong.output
    assert "http.port input should be a valid integer" in wrong.output
    faults = json.loads(run(app, ["config", "check", "--file", "server.toml", "--json"]).output)
    assert {fault["setting"] for fault in faults} == {"database.pol_max", "http.port"}


def test_every_command_prints_json_and_has_a_short_help_option() -> None:
    # `dev` and `run` continue until they are stopped; a page in a browser and a completion script are no data.
    for words, command in _commands():
        options = {option for parameter in command.params for option in parameter.opts}
        assert "--json" in options or words[0] in ("dev", "run", "completion") or words == ["message", "open"]
        assert "Usage:" in CliRunner().invoke(app, [*words, "-h"]).output
    assert "Usage:" in CliRunner().invoke(app, ["-h"]).output


def test_a_mistyped_command_is_answered_with_the_nearest(operator: Operator) -> None:
    assert "Did you mean 'account'?" in operator.type("acount", status=2)
    assert "Did you mean 'list'?" in operator.type("key", "lst", status=2)


def test_a_shell_completes_commands_and_options(tmp_path: Path) -> None:
    for shell in ("bash", "zsh", "fish"):
        assert "_POSTHOUSE_COMPLETE" in CliRunner().invoke(app, ["completion", shell]).output
    for words, number, expected in (
        ("posthouse acc", 1, "account"),
        ("posthouse user ro", 2, "role"),
        ("posthouse key create --ex", 3, "--expires"),
    ):
        asked = {"_POSTHOUSE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(number)}
        done = preloaded.run(environment={**environment(), **asked}, directory=tmp_path)
        assert done.stdout.split() == [expected]


@pytest.mark.nightly
def test_help_takes_little_processor_time(tmp_path: Path) -> None:
    limit = max(HELP_SECONDS_MAX, HELP_IMPORTS_MAX * _seconds_to_import_asyncio(tmp_path))
    assert _processor_seconds(environment(), tmp_path, "-m", "posthouse", "--help") < limit


@pytest.mark.nightly
def test_a_command_on_the_database_takes_little_processor_time(operator: Operator, tmp_path: Path) -> None:
    account = operator.account("processor time")
    given = {**environment(), **{name: value for name, value in operator.environment.items() if value is not None}}
    limit = max(DATABASE_SECONDS_MAX, DATABASE_IMPORTS_MAX * _seconds_to_import_asyncio(tmp_path))
    for words in (("account", "list"), ("key", "list", account)):
        assert _processor_seconds(given, tmp_path, "-m", "posthouse", *words) < limit


def test_a_command_imports_no_library_that_it_does_not_use(operator: Operator, tmp_path: Path) -> None:
    unused = {
        *("rich", "structlog", "dns", "jwt", "cryptography", "argon2"),
        *("aiohttp", "fastapi", "uvicorn", "nats", "alembic"),
    }
    commands = [["--help"], ["account", "list"], ["key", "list", operator.account("imports")]]
    program = f"""
import sys, posthouse.__main__ as m
for words in {commands}:
    sys.argv = ["posthouse", *words]
    try:
        m.main()
    except SystemExit as ended:
        print("modules", *{{name.partition(".")[0] for name in sys.modules}}, file=sys.stderr)
        assert not ended.code
"""
    given = {name: value for name, value in operator.environment.items() if value is not None}
    done = subprocess.run(
        [sys.executable, "-c", program], env={**environment(), **given}, cwd=tmp_path, capture_output=True, text=True
    )
    imported = [set(line.split()) for line in done.stderr.splitlines() if line.startswith("modules ")]
    assert len(imported) == len(commands), done.stderr
    for words, modules in zip(commands, imported, strict=True):
        assert "typer" in modules
        assert not modules & (unused | ({"pydantic", "asyncpg"} if words == ["--help"] else set())), words


def _seconds_to_import_asyncio(directory: Path) -> float:
    return _processor_seconds(environment(), directory, "-c", "import asyncio")


def _processor_seconds(given: dict[str, str], directory: Path, *words: str) -> float:
    """Of the cheapest of five runs: the first may compile, and others share the processor's caches."""
    best = float("inf")
    for _ in range(5):
        process = subprocess.Popen([sys.executable, *words], env=given, cwd=directory, stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        best = min(best, used.ru_utime + used.ru_stime)
    return best


def _commands() -> Iterator[tuple[list[str], Any]]:
    def below(command: Any, words: list[str]) -> Iterator[tuple[list[str], Any]]:
        if hasattr(command, "commands"):
            for name, sub in command.commands.items():
                yield from below(sub, [*words, name])
        else:
            yield words, command

    yield from below(typer.main.get_command(app), [])


def _on_a_terminal(columns: int, directory: Path, given: dict[str, str], *words: str) -> str:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with os.fdopen(theirs, "wb", buffering=0) as output:
        process = preloaded.start(*words, environment=given, directory=directory, output=output)
    shown = b""
    try:
        while chunk := os.read(ours, 65_536):
            shown += chunk
    except OSError:  # how a terminal ends on Linux
        pass
    finally:
        os.close(ours)
    assert process.wait(COMMAND_SECONDS_MAX) == 0, shown
    return shown.decode()


async def _invitations(url: str, account: str) -> int:
    connection = await asyncpg.connect(url)
    found: int = await connection.fetchval(
        "SELECT count(*) FROM invitations WHERE account_id = $1", ids.parse(ids.ACCOUNT, account)
    )
    await connection.close()
    return found


async def _log(url: str, account: str) -> list[str]:
    connection = await asyncpg.connect(url)
    rows = await connection.fetch(
        "SELECT action FROM audit_log WHERE account_id = $1 ORDER BY id", ids.parse(ids.ACCOUNT, account)
    )
    await connection.close()
    return [row["action"] for row in rows]
