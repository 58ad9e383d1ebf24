"""The operator's commands: real processes against a real database."""

import asyncio
import json
import os
import signal
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from posthouse.config.text import generated
from tests.support import preloaded
from tests.support.eventually import HANG_SECONDS, eventually
from tests.support.fresh_database import make_older_than_1_0
from tests.support.nameserver import Nameserver
from tools.private_nats import PrivateNats
from tools.private_postgres import PrivatePostgres, free_port

COMMAND_SECONDS_MAX = HANG_SECONDS
BYTECODE = Path(__file__).parents[2] / ".run" / "bytecode"


@dataclass
class Answer:
    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.status == 0, self.err
        return json.loads(self.out)


@dataclass
class Terminal:
    """A directory and an environment in which commands run."""

    directory: Path
    environment: dict[str, str]

    def type(self, *words: str, given: str = "") -> Answer:
        done = preloaded.run(
            *words,
            environment=self.environment,
            directory=self.directory,
            given=given,
            seconds_max=COMMAND_SECONDS_MAX,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return Answer(done.returncode, done.stdout, done.stderr)

    def refuses(self, *words: str, expected: str, given: str = "") -> None:
        """A refusal is a line on standard error that says what to do, and exit status 1."""
        answer = self.type(*words, given=given)
        assert answer.status == 1, answer
        assert answer.err.startswith("posthouse: ")
        assert answer.err.count("\n") == 1
        assert expected in answer.err


def environment(**settings: str) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("POSTHOUSE_") and name != "PYTHONDONTWRITEBYTECODE"
    }
    # Each command is its own process: without cached bytecode it would compile every library again.
    kept["PYTHONPYCACHEPREFIX"] = str(BYTECODE)
    return {**kept, **{f"POSTHOUSE_{name}": value for name, value in settings.items()}}


# No mail leaves, so that `doctor` needs no hostname, and asks no name server.
CAPTURED = {"DELIVERY__OUTBOUND": "capture"}


def secrets() -> dict[str, str]:
    made = generated()
    return {
        "SECRETS__PEPPER": made.pepper,
        "SECRETS__JWT_SECRET": made.jwt_secret,
        "SECRETS__SEAL_KEYS": json.dumps(dict(made.seal_keys)),
        "SECRETS__SEAL_KEY_ACTIVE": made.seal_key_active,
    }


@pytest.fixture
def terminal(database_url: str, tmp_path: Path) -> Terminal:
    return Terminal(tmp_path, environment(DATABASE__URL=database_url, **CAPTURED, **secrets()))


def test_from_nothing_to_a_healthy_installation(postgres: PrivatePostgres, tmp_path: Path) -> None:
    postgres.create_database("cli_fresh")
    terminal = Terminal(tmp_path, environment(DATABASE__URL=postgres.url("cli_fresh"), **CAPTURED))
    terminal.refuses("account", "list", expected="run `posthouse config init`")

    assert terminal.type("config", "init").status == 0
    assert stat.S_IMODE((tmp_path / "posthouse.toml").stat().st_mode) == 0o600
    terminal.refuses("config", "init", expected="exists already")
    del terminal.environment["POSTHOUSE_DATABASE__URL"]  # it is in the file now

    shown = terminal.type("config", "show")
    assert "cli_fresh" in shown.out
    assert "(hidden)" in shown.out

    terminal.refuses("account", "list", expected="run `posthouse migrate`")
    terminal.refuses("run", expected="run `posthouse migrate`")
    unwell = terminal.type("doctor")
    assert unwell.status == 1
    assert "Run `posthouse migrate`." in unwell.out
    assert "Runbook: /dashboard/runbooks/tables-old" in unwell.out
    found = {check["kind"]: check["runbook"] for check in json.loads(terminal.type("doctor", "--json").out)}
    assert (found["tables"], found["postgres"]) == ("tables-old", None)
    assert terminal.type("migrate").status == 0
    checks = terminal.type("doctor", "--json").json
    assert all(check["is_well"] for check in checks), checks

    (tmp_path / "posthouse.toml").chmod(0o644)
    assert "chmod 600" in terminal.type("doctor").out


def test_an_account_from_its_creation_to_its_suspension(terminal: Terminal) -> None:
    made = terminal.type("account", "create", "Acme", "--json").json
    assert made["id"].startswith("ac_")
    assert made["credential"]["password"]
    terminal.refuses("account", "create", "acme", expected="already")

    terminal.refuses("credits", "grant", "Acme", "0", "--reason", "x", expected="other than 0")
    assert "500 credits" in terminal.type("credits", "grant", "Acme", "500", "--reason", "start").out
    taken = terminal.type("credits", "grant", made["id"], "-100", "--reason", "typing error", "--json").json
    assert taken["available"] == 400

    limits = terminal.type("account", "limits", "Acme", "--rate", "5", "--warmup", "10,20", "--json").json
    assert (limits["rate_per_second"], limits["warmup_limits"]) == (5, [10, 20])
    terminal.refuses("account", "limits", "Acme", expected="nothing to set")
    terminal.refuses("account", "limits", "Acme", "--warmup", "soon", expected="neither")

    assert terminal.type("account", "suspend", "Acme", "--reason", "spam").status == 0
    listed = terminal.type("account", "list")
    assert made["id"] in listed.out
    assert "spam" in listed.out
    assert terminal.type("account", "resume", "Acme").status == 0
    assert terminal.type("account", "list", "--json").json[0]["suspended_at"] is None


def test_secrets_are_shown_once_and_end_when_revoked(terminal: Terminal) -> None:
    terminal.type("account", "create", "Acme")
    credential = terminal.type("credential", "create", "Acme", "web", "--allow", "192.0.2.0/24", "--json").json
    assert credential["allowed_networks"] == ["192.0.2.0/24"]
    key = terminal.type(
        *("key", "create", "Acme", "--test", "--read", "--expires", "90d"),
        *("--credential", credential["username"], "--json"),
    ).json
    assert key["secret"].startswith("ph_test_")
    terminal.refuses("key", "create", "Acme", "--expires", "soon", expected="is no time")
    password = "correct horse battery\n"
    user = terminal.type("user", "create", "Acme", "Ada@example.com", "--password-stdin", given=password)
    assert user.status == 0, user.err
    reset = terminal.type("user", "password", "ada@example.com", "--password-stdin", given="another battery\n")
    assert "0 of their sessions ended" in reset.out, reset.err
    terminal.refuses("user", "password", "ada@example.com", "--password-stdin", given="short\n", expected="12 to 256")
    terminal.refuses("user", "totp-off", "ada@example.com", expected="no second factor")
    terminal.refuses("user", "totp-off", "bob@example.com", expected="no user bob@example.com")

    rotated = terminal.type("key", "rotate", "Acme", key["id"], "--overlap", "60", "--json").json
    assert rotated["secret"] != key["secret"]
    again = terminal.type("credential", "rotate", "Acme", credential["username"], "--json").json
    assert again["previous_password_until"]
    assert terminal.type("key", "revoke", "Acme", key["id"]).status == 0
    assert terminal.type("credential", "revoke", "Acme", credential["username"]).status == 0
    shown = terminal.type("account", "show", "Acme", "--json")
    assert shown.json["keys"][0]["revoked_at"]
    assert shown.json["users"][0]["email"] == "ada@example.com"
    output = shown.out + terminal.type("account", "show", "Acme").out
    for secret in (credential["password"], key["secret"], password.strip()):
        assert secret not in output


def test_a_user_is_invited_with_a_token_that_is_shown_once(terminal: Terminal) -> None:
    terminal.type("account", "create", "Acme")
    made = terminal.type("user", "invite", "Acme", "Ada@example.com", "--role", "viewer", "--json").json
    assert (made["email"], made["role"], made["link"]) == ("ada@example.com", "viewer", None)
    assert len(made["token"]) == 43
    terminal.environment["POSTHOUSE_HTTP__PUBLIC_URL"] = "https://mail.example.com"
    again = terminal.type("user", "invite", "Acme", "ada@example.com")
    assert "https://mail.example.com/invitation#" in again.out
    assert made["token"] not in again.out
    terminal.refuses("user", "invite", "absent", "ada@example.com", expected="no account 'absent'")
    terminal.refuses("user", "invite", "Acme", "ada", expected="`email` has no @")


async def test_a_domain_is_verified_through_dns_or_by_the_operator(terminal: Terminal) -> None:
    async with Nameserver() as nameserver:
        terminal.environment["POSTHOUSE_SERVICE__RESOLVERS"] = f"127.0.0.1:{nameserver.port}"
        await asyncio.to_thread(terminal.type, "account", "create", "Acme")
        added = await asyncio.to_thread(terminal.type, "domain", "add", "Acme", "example.com", "--json")
        missing = await asyncio.to_thread(terminal.type, "domain", "verify", "Acme", "example.com")
        assert missing.status == 1
        assert "is not verified" in missing.out
        assert added.json["records"][0]["value"] in missing.out
        assert [record["required"] for record in added.json["records"]] == [True, True, False, False, False]
        assert "(recommended)" in missing.out
        to_publish = [record for record in added.json["records"] if record["value"]]
        for record in to_publish:
            nameserver.zone[record["name"]] = [record["value"]]
        found = await asyncio.to_thread(terminal.type, "domain", "verify", "Acme", "example.com", "--json")
        assert found.json["verified_at"]
        results = {finding["purpose"]: finding["result"] for finding in found.json["findings"]}
        assert results == {
            **dict.fromkeys(("ownership", "dkim_rsa", "dkim_ed25519", "dmarc"), "found"),
            "return_path": "missing",
        }
        asked = len(nameserver.asked)
        await asyncio.to_thread(terminal.type, "domain", "add", "Acme", "example.net")
        vouched = await asyncio.to_thread(
            terminal.type, "domain", "verify", "Acme", "example.net", "--vouched", "--json"
        )
        assert vouched.json["vouched"]
        assert len(nameserver.asked) == asked
    listed = await asyncio.to_thread(terminal.type, "domain", "list", "Acme", "--records")
    for record in to_publish:
        assert record["value"] in listed.out
    rotated = await asyncio.to_thread(terminal.type, "domain", "rotate", "Acme", "example.com", "--json")
    assert [record["purpose"] for record in rotated.json["records"] if record["state"] == "pending"] == [
        "dkim_rsa",
        "dkim_ed25519",
    ]
    assert (await asyncio.to_thread(terminal.type, "domain", "remove", "Acme", "example.com")).status == 0
    await asyncio.to_thread(terminal.refuses, "domain", "remove", "Acme", "example.com", expected="has no domain")


def test_a_database_that_is_down_is_reported_in_one_line(tmp_path: Path) -> None:
    url = f"postgresql://posthouse:hunter2@127.0.0.1:{free_port()}/posthouse"
    terminal = Terminal(tmp_path, environment(DATABASE__URL=url, **secrets()))
    terminal.refuses("account", "list", expected="start PostgreSQL")
    terminal.refuses("migrate", expected="start PostgreSQL")
    doctor = terminal.type("doctor")
    assert doctor.status == 1
    assert "FAIL  PostgreSQL answers" in doctor.out
    assert "hunter2" not in doctor.out + doctor.err


def test_a_database_that_would_lose_mail_is_refused(tmp_path: Path) -> None:
    with PrivatePostgres.start(settings={"fsync": "off", "max_locks_per_transaction": "64"}) as cluster:
        terminal = Terminal(tmp_path, environment(DATABASE__URL=cluster.url(), **secrets()))
        terminal.refuses("migrate", expected="fsync=off")
        terminal.refuses("run", expected="fsync=off")
        doctor = terminal.type("doctor")
        assert doctor.status == 1
        assert "Set fsync = on" in doctor.out
        assert "Set max_locks_per_transaction = 256" in doctor.out
        terminal.environment["POSTHOUSE_DATABASE__ALLOW_UNSAFE"] = "true"
        assert terminal.type("migrate").status == 0


def test_tracing_without_its_extra_is_refused_with_what_to_install(terminal: Terminal) -> None:
    without = "import sys; sys.modules['opentelemetry'] = None; from posthouse.__main__ import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", without, "run", "maintenance"],
        cwd=terminal.directory,
        env={**terminal.environment, "POSTHOUSE_TRACING__SHARE": "0.5"},
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert 'install "posthouse[otel]"' in done.stderr


@pytest.mark.parametrize("parts", [["http"], [], ["maintenance"]])
def test_the_service_runs_until_it_is_stopped(terminal: Terminal, parts: list[str]) -> None:
    port = free_port()
    if parts == ["maintenance"]:
        asyncio.run(_drop_partitions(terminal))
    log = terminal.directory / "log"
    with log.open("wb") as output:
        words = ("run", *parts, "--port", str(port))
        process = preloaded.start(*words, environment=terminal.environment, directory=terminal.directory, output=output)
    try:
        if parts != ["maintenance"]:
            asyncio.run(eventually(lambda: _answers(port), or_say=log.read_text))
        else:
            asyncio.run(_wait_for_partitions(terminal))
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        process.wait(HANG_SECONDS)
    finally:
        process.kill()
    assert process.returncode in (0, -signal.SIGTERM), log.read_text()
    assert "Traceback" not in log.read_text()


def test_maintenance_makes_missing_partitions(terminal: Terminal) -> None:
    asyncio.run(_drop_partitions(terminal))
    assert terminal.type("doctor").status == 1
    assert terminal.type("maintenance").status == 0
    assert terminal.type("doctor").status == 0


def test_older_tables_are_refused_and_newer_tables_are_not(terminal: Terminal) -> None:
    async def become(revision: str) -> None:
        connection = await asyncpg.connect(terminal.environment["POSTHOUSE_DATABASE__URL"])
        await connection.execute("UPDATE schema_revision SET version_num = $1", revision)
        await connection.close()

    asyncio.run(become("0000"))
    terminal.refuses("run", expected="older than this version (0000, not ")
    terminal.refuses("account", "list", expected="run `posthouse migrate`")
    doctor = terminal.type("doctor")
    assert doctor.status == 1
    assert "FAIL  tables up to date: 0000" in doctor.out
    assert "Run `posthouse migrate`." in doctor.out
    asyncio.run(become("9999"))
    assert terminal.type("account", "list").status == 0
    assert terminal.type("doctor").status == 0


def test_tables_of_a_version_before_1_0_are_refused_in_one_sentence(terminal: Terminal) -> None:
    """Also where their revision is above the newest of this version."""
    asyncio.run(make_older_than_1_0(terminal.environment["POSTHOUSE_DATABASE__URL"]))
    said = "made by a version before 1.0, whose tables can't be upgraded: set database.url to a new, empty database"
    for words in (["migrate"], ["account", "list"], ["run"], ["maintenance"]):
        terminal.refuses(*words, expected=said)
    doctor = terminal.type("doctor")
    assert doctor.status == 1
    assert "FAIL  tables up to date: no" in doctor.out
    assert said in " ".join(doctor.out.split())
    assert "newest" not in doctor.out


def test_doctor_asks_every_server_of_the_stream(terminal: Terminal) -> None:
    port = free_port()
    with PrivateNats() as nats:
        terminal.environment["POSTHOUSE_STREAM__SERVERS"] = nats.url
        doctor = terminal.type("doctor")
        assert doctor.status == 0
        assert f"ok    the stream's server at 127.0.0.1:{nats.port} answers: NATS 2." in doctor.out
        terminal.environment["POSTHOUSE_STREAM__SERVERS"] = f"{nats.url},nats://ada:hunter2@127.0.0.1:{port}"
        doctor = terminal.type("doctor")
    assert doctor.status == 1
    assert f"FAIL  the stream's server at 127.0.0.1:{port} answers: " in doctor.out
    assert "or correct `stream.servers`" in doctor.out
    assert "hunter2" not in doctor.out + doctor.err


def test_help_and_version_need_no_settings(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, environment())
    assert "account" in terminal.type("--help").out
    assert terminal.type("--version").out.startswith("posthouse ")
    assert terminal.type("account", "nonsense").status == 2


_PARTITIONS = "SELECT inhrelid::regclass::text AS name FROM pg_inherits WHERE inhparent = 'bodies'::regclass"


async def _drop_partitions(terminal: Terminal) -> None:
    connection = await asyncpg.connect(terminal.environment["POSTHOUSE_DATABASE__URL"])
    days = await connection.fetch(_PARTITIONS)
    await connection.execute("DROP TABLE " + ", ".join(row["name"] for row in days))
    await connection.close()


async def _wait_for_partitions(terminal: Terminal) -> None:
    connection = await asyncpg.connect(terminal.environment["POSTHOUSE_DATABASE__URL"])
    await eventually(lambda: connection.fetch(_PARTITIONS))
    await connection.close()


def _answers(port: int) -> bool:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=HANG_SECONDS).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True
