"""The operator's commands: real processes against a real database."""

import asyncio
import json
import os
import signal
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from posthouse.config.text import generated
from tests.support import preloaded
from tests.support.eventually import HANG_SECONDS, eventually
from tests.support.fresh_database import make_older_than_1_0
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

    @contextmanager
    def running(self, *words: str) -> Iterator[Callable[[], str]]:
        """`posthouse run` with those words, and what it said, until SIGTERM; then it ends without a fault."""
        log = self.directory / "log"
        with log.open("wb") as output:
            process = preloaded.start(
                "run", *words, environment=self.environment, directory=self.directory, output=output
            )
        try:
            yield log.read_text
            assert process.poll() is None, log.read_text()
            process.terminate()
            process.wait(HANG_SECONDS)
        finally:
            process.kill()
        assert process.returncode in (0, -signal.SIGTERM), log.read_text()
        assert "Traceback" not in log.read_text()


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


def test_a_database_that_is_down_is_reported_in_one_line(tmp_path: Path) -> None:
    url = f"postgresql://posthouse:hunter2@127.0.0.1:{free_port()}/posthouse"
    terminal = Terminal(tmp_path, environment(DATABASE__URL=url, **secrets()))
    terminal.refuses("account", "list", expected="start PostgreSQL")
    terminal.refuses("migrate", expected="start PostgreSQL")
    doctor = terminal.type("doctor")
    assert doctor.status == 1
    assert "FAIL  PostgreSQL answers" in doctor.out
    assert "hunter2" not in doctor.out + doctor.err


@pytest.fixture(scope="module")
def unusable() -> Iterator[PrivatePostgres]:
    """It would lose mail, and has no tables."""
    with PrivatePostgres.start(settings={"fsync": "off", "max_locks_per_transaction": "64"}) as cluster:
        yield cluster


def test_a_database_that_would_lose_mail_is_refused(unusable: PrivatePostgres, tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, environment(DATABASE__URL=unusable.url(), **secrets()))
    terminal.refuses("migrate", expected="fsync=off")
    terminal.refuses("run", expected="fsync=off")
    doctor = terminal.type("doctor")
    assert doctor.status == 1
    assert "Set fsync = on" in doctor.out
    assert "Set max_locks_per_transaction = 256" in doctor.out
    terminal.environment["POSTHOUSE_DATABASE__ALLOW_UNSAFE"] = "true"
    assert terminal.type("migrate").status == 0


def test_a_wrong_password_of_the_database_is_answered_as_such(unusable: PrivatePostgres, tmp_path: Path) -> None:
    async def ask_ada_for_a_password() -> None:
        connection = await asyncpg.connect(unusable.url())
        await connection.execute("CREATE ROLE ada LOGIN PASSWORD 'right'")
        with open(await connection.fetchval("SHOW hba_file"), "r+") as rules:  # noqa: ASYNC230
            found = rules.read()
            rules.seek(0)
            rules.write("host all ada all scram-sha-256\n" + found)
        await connection.execute("SELECT pg_reload_conf()")
        await connection.close()

    asyncio.run(ask_ada_for_a_password())
    wrong = unusable.url().replace("//postgres@", "//ada:hunter2@")
    terminal = Terminal(tmp_path, environment(DATABASE__URL=wrong, **secrets()))
    terminal.refuses("account", "list", expected="refuses the password: correct it in database.url")
    doctor = terminal.type("doctor")
    assert "PostgreSQL runs, and refuses the password" in doctor.out
    assert "Start PostgreSQL" not in doctor.out


def test_the_service_says_which_parts_start_and_where_and_runs_until_it_is_stopped(terminal: Terminal) -> None:
    port = free_port()
    with terminal.running("--host", "127.0.0.1", "--port", str(port)) as said:
        asyncio.run(eventually(said, lambda text: "Uvicorn running on" in text))
    assert f"posthouse: http starts on http://127.0.0.1:{port}\n" in said()
    for part in ("dispatch", "delivery", "notification", "maintenance"):
        assert f"posthouse: {part} starts\n" in said()
    assert "posthouse: submission does not start: set smtp.tls_certificate_file" in said()
    assert "posthouse: inbound does not start: set inbound.return_path_domain" in said()


def test_the_part_maintenance_makes_missing_partitions(terminal: Terminal) -> None:
    asyncio.run(_drop_partitions(terminal))
    with terminal.running("maintenance"):
        asyncio.run(_wait_for_partitions(terminal))


def test_the_command_maintenance_makes_missing_partitions(terminal: Terminal) -> None:
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
