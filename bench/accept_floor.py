"""The floor of acceptance: the server's own accepting statements, run by pgbench with nothing in front of them.

The statements are those of `posthouse.store.acceptance`, word for word, except for their parameters:
each `$n` becomes an expression that pgbench or PostgreSQL fills in. What goes where is not written
down here: a message of marked values passes through the server's own `write_call`, and each mark
that comes out is replaced by what it stands for.
"""

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from uuid import UUID

from bench import message
from bench.dataset import ACCOUNT_PREFIX, ACCOUNTS, CREDENTIAL_PREFIX, NUMBER_MIN, Dataset
from bench.delivery_isolation import percentile
from bench.processes import LOAD, BenchError, Measured, metered, microseconds
from posthouse.rules import ids
from posthouse.rules.ids import AccountId, CredentialId, MessageId, RequestId
from posthouse.store import acceptance
from posthouse.store.acceptance import IdempotencyKey, PreparedMessage, Spending
from posthouse.store.postgres import SETTINGS
from tools.private_postgres import find_binaries

# pgbench knows numbers only. A message's id is a prefix of 14 digits, today's time, and a number of 18.
_NUMBER_MIN: Final = 10**17
_TURN_STEP: Final = 10**6
_CLIENT_STEP: Final = 10**3
# Prime to the number of accounts, so that a batch names each at most once, and not neighbours.
_ACCOUNT_STEP: Final = 37

_ACCOUNT: Final = AccountId(UUID(int=1))
_CREDENTIAL: Final = CredentialId(UUID(int=2))
_MESSAGE: Final = MessageId(UUID(int=3))
_REQUEST: Final = RequestId(UUID(int=4))
_KEY: Final = IdempotencyKey(_ACCOUNT, _CREDENTIAL, "the key")
_NOW: Final = datetime(2000, 1, 1, tzinfo=UTC)
_MIME_MARK: Final = b"the message"
_DOMAIN: Final = "shop500.example"

WAL_KB: Final = "WAL KB"

_PARAMETER: Final = re.compile(r"\$(\d+)::(\w+)(\[\])?")
_PROCESSED: Final = re.compile(r"number of transactions actually processed: (\d+)")
_FAILED: Final = re.compile(r"number of failed transactions: (\d+)")
_PER_SECOND: Final = re.compile(r"tps = ([\d.]+) \(without initial connection time\)")


def program() -> Path:
    return find_binaries() / "pgbench"


def missing() -> str | None:
    if os.access(program(), os.X_OK):
        return None
    return "pgbench is missing: it comes with PostgreSQL (Debian, Ubuntu: `apt install postgresql-contrib`)"


def run(data: Dataset, *, batch: int, clients: int, seconds: int, mail: bytes | None = None) -> Measured:
    """Messages accepted in transactions of `batch`; raises unless every one of them is stored."""
    data.clear()
    wal_bytes = data.wal_bytes()
    with metered({"PostgreSQL": [data.cluster.pid]}) as used:
        said, latencies_ms = _pgbench(data, batch, clients, seconds, mail or stored_mail())
        # The time of a backend that ended counts once PostgreSQL has waited for it.
        data.wait_until_alone()
    wal_bytes = data.wal_bytes() - wal_bytes
    messages = int(_number(_PROCESSED, said)) * batch
    data.require_messages(messages)
    each_us = microseconds(used, messages)
    load_us = each_us.pop(LOAD)
    return Measured(
        count=messages,
        seconds=messages / (_number(_PER_SECOND, said) * batch),
        server_us=each_us,
        load_us=load_us,
        p50_ms=percentile(latencies_ms, 0.50),
        p99_ms=percentile(latencies_ms, 0.99),
        figures={WAL_KB: wal_bytes / messages / 1024},
    )


def script(batch: int, now: datetime) -> str:
    """A pgbench script of one accepting transaction of `batch` messages."""
    lock = ([_KEY.lock_number], [_ACCOUNT])
    recall = ([_ACCOUNT], [_CREDENTIAL], [_KEY.text])
    spending = Spending(_ACCOUNT, 1, _NOW, _NOW, _NOW.date(), 1_000, 0, _NOW.date(), _NOW.date(), 1)
    write, *arguments = acceptance.write_call([_entry()], [spending], _NOW, _NOW)
    marks = _marks(batch, ids.lowest_id(now).hex[:12] + "70")
    statements = (
        _filled(acceptance.LOCK, lock, marks, batch),
        _filled(acceptance.RECALL, recall, marks, batch),
        _filled(write, arguments, marks, batch),
    )
    return "\n".join(
        [
            r"\set turn :turn + 1",
            rf"\set number {_NUMBER_MIN} + :turn * {_TURN_STEP} + :client_id * {_CLIENT_STEP}",
            rf"\set account random(0, {ACCOUNTS - 1})",
            "BEGIN;",
            *(f"{statement.strip()};" for statement in statements),
            "COMMIT;",
            "",
        ]
    )


def stored_mail() -> bytes:
    """The message as the server stores it."""
    return message.mail(_DOMAIN, message.TEXT, "localhost.localdomain")


def _entry() -> PreparedMessage:
    draft = message.draft(_DOMAIN)
    return PreparedMessage(
        account_id=_ACCOUNT,
        credential_id=_CREDENTIAL,
        key=_KEY,
        body_hash=bytes(range(32)),
        message_id=_MESSAGE,
        request_id=_REQUEST,
        source="api",
        sender=draft.request_fields.sender,
        envelope_sender=draft.sender.address,
        subject=message.SUBJECT,
        tags=(),
        template=None,
        recipients=[*draft.recipients],
        credits=1,
        mime=_MIME_MARK,
    )


def _marks(batch: int, id_prefix: str) -> Mapping[object, str]:
    """What replaces each marked value, as SQL, in the message at place `i` of the batch."""
    number, account = ":number", ":account"
    if batch > 1:
        number = "(:number::bigint + i)"
        account = f"((:account::integer + i * {_ACCOUNT_STEP}) % {ACCOUNTS})"
    account = f"({NUMBER_MIN} + {account}::integer)::text"
    return {
        _KEY.lock_number: f"{number}::bigint",
        _KEY.text: f"{number}::text",
        _ACCOUNT: f"('{ACCOUNT_PREFIX}' || {account})::uuid",
        _CREDENTIAL: f"('{CREDENTIAL_PREFIX}' || {account})::uuid",
        _MESSAGE: f"('{id_prefix}' || {number}::text)::uuid",
        _REQUEST: f"('{id_prefix}' || {number}::text)::uuid",
        _NOW: "now()",
        _NOW.date(): "current_date",
        # In the text that PostgreSQL reads fastest; the value is pgbench's to send.
        _MIME_MARK: ":mime::bytea",
    }


def _filled(statement: str, arguments: Sequence[object], marks: Mapping[object, str], batch: int) -> str:
    def fill(found: re.Match[str]) -> str:
        argument = arguments[int(found[1]) - 1]
        kind = found[2]
        if not isinstance(argument, Sequence) or isinstance(argument, str | bytes):
            return _scalar(argument, kind + (found[3] or ""), marks)
        (element,) = argument
        value = _scalar(element, kind, marks)
        if batch == 1:
            return f"ARRAY[{value}]"
        if re.search(r"\bi\b", value):
            return f"ARRAY(SELECT {value} FROM generate_series(0, {batch - 1}) i)"
        return f"array_fill({value}, ARRAY[{batch}])"

    return _PARAMETER.sub(fill, statement)


def _scalar(value: object, kind: str, marks: Mapping[object, str]) -> str:
    cast = f"::{kind}" if kind else ""
    match value:
        case list():  # the recipients, whose rows have no type by themselves
            return f"ARRAY[{', '.join(_scalar(element, '', marks) for element in value)}]::accepted_recipient[]"
        case tuple():
            return f"ROW({', '.join(_scalar(field, '', marks) for field in value)}){cast}"
        case _ if value in marks:
            return marks[value]
        case None:
            return f"NULL{cast}"
        case bytes():
            return f"'\\x{value.hex()}'{cast}"
        case datetime():  # only the end of an idempotency key's life is neither marked nor stored as it is
            return f"now() + interval '{int((value - _NOW).total_seconds())} seconds'"
        case int() | str():
            quoted = str(value).replace("'", "''")
            return f"'{quoted}'{cast}"
        case _:
            raise TypeError(f"no SQL for {value!r}")


def _pgbench(data: Dataset, batch: int, clients: int, seconds: int, mail: bytes) -> tuple[str, list[float]]:
    file = data.workplace / f"accept-{batch}.sql"
    file.write_text(script(batch, datetime.now(UTC)))
    log = data.workplace / "pgbench-log"
    for old in data.workplace.glob("pgbench-log*"):
        old.unlink()
    done = subprocess.run(
        [
            str(program()),
            "--no-vacuum",
            "--protocol=prepared",
            f"--client={clients}",
            "--jobs=1",
            f"--time={seconds}",
            f"--file={file}",
            "--log",
            f"--log-prefix={log}",
            "--define=turn=0",
            f"--define=mime={_escaped(mail)}",
            data.url,
        ],
        env={**os.environ, "PGOPTIONS": _options()},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0 or _number(_FAILED, done.stdout) != 0:
        raise BenchError(f"pgbench failed ({done.returncode}):\n{done.stderr[-3000:]}\n{done.stdout[-1000:]}")
    lines = [line for part in data.workplace.glob("pgbench-log*") for line in part.read_text().splitlines()]
    return done.stdout, [int(line.split()[2]) / 1000 for line in lines]


def _options() -> str:
    """The settings of the server's own connections, for PGOPTIONS."""
    return " ".join(f"-c {name}={value}" for name, value in SETTINGS.items())


def _escaped(content: bytes) -> str:
    """PostgreSQL's "escape" spelling of a bytea, which is nearly the text itself."""
    return "".join("\\\\" if byte == 0x5C else chr(byte) if 0 < byte < 0x80 else f"\\{byte:03o}" for byte in content)


def _number(pattern: re.Pattern[str], said: str) -> float:
    found = pattern.search(said)
    if found is None:
        raise BenchError(f"pgbench printed something else than expected:\n{said[-2000:]}")
    return float(found[1])
