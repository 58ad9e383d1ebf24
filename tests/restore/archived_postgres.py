"""A PostgreSQL with backups and a WAL archive, restored to a point in time: with pgBackRest, or with PostgreSQL's own
tools.

The commands are those of docs/howto/backup.md.
"""

import asyncio
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Final

import asyncpg

from tests.support.eventually import HANG_SECONDS, eventually
from tests.support.fresh_database import create
from tools.private_postgres import PrivatePostgres, find_binaries, free_port

STANZA: Final = "posthouse"
# A segment is archived every second: that much is lost with the machine.
SETTINGS: Final = {
    "shared_buffers": "64MB",
    "wal_level": "replica",
    "archive_mode": "on",
    "archive_timeout": "1s",
    "max_wal_senders": "4",
}


def has_pgbackrest() -> bool:
    return shutil.which("pgbackrest") is not None


class ArchivedPostgres:
    """`with_pgbackrest`: otherwise pg_basebackup, and an archive of files."""

    def __init__(self, directory: Path, database: str, *, with_pgbackrest: bool) -> None:
        self.directory = directory
        self.database = database
        self.with_pgbackrest = with_pgbackrest
        self.port = free_port()
        self.archive = directory / "archive"
        self.base = directory / "base"
        self.configuration = directory / "pgbackrest.conf"
        self.server: PrivatePostgres | None = None

    @property
    def running(self) -> PrivatePostgres:
        assert self.server is not None, "it does not run"
        return self.server

    @property
    def url(self) -> str:
        return self.running.url(self.database)

    @property
    def data(self) -> Path:
        return self.directory / "cluster" / "data"

    def start(self) -> None:
        archive = (
            f"pgbackrest --config={self.configuration} --stanza={STANZA} archive-push %p"
            if self.with_pgbackrest
            else f"test ! -f {self.archive}/%f.gz && gzip -1 < %p > {self.archive}/%f.part"
            f" && mv {self.archive}/%f.part {self.archive}/%f.gz"
        )
        settings = {**SETTINGS, "archive_command": archive}
        self.server = PrivatePostgres.start(self.directory / "cluster", self.port, settings)

    def prepare(self) -> None:
        """Starts it, with an empty migrated database and a first backup."""
        for each in (self.archive, self.base, self.directory / "repository", self.directory / "log"):
            each.mkdir(mode=0o700)
            self._give(each)
        self.configuration.write_text(
            f"[global]\nrepo1-path={self.directory / 'repository'}\nlog-path={self.directory / 'log'}\n"
            f"lock-path={self.directory / 'log'}\nspool-path={self.directory / 'log'}\nstart-fast=y\n"
            "compress-type=lz4\nlog-level-console=warn\n\n"
            f"[{STANZA}]\npg1-path={self.data}\npg1-port={self.port}\npg1-socket-path={self.directory / 'cluster'}\n"
            "pg1-user=postgres\n"
        )
        self.start()
        with (self.data / "pg_hba.conf").open("a") as access:
            access.write("local replication all trust\nhost replication all 127.0.0.1/32 trust\n")
        create(self.running, self.database)
        asyncio.run(self.value("SELECT pg_reload_conf()"))
        if self.with_pgbackrest:
            self._pgbackrest("stanza-create")

    def back_up(self) -> None:
        if self.with_pgbackrest:
            self._pgbackrest("backup", "--type=full")
            return
        target = f"host=127.0.0.1 port={self.port} user=postgres"
        words = [f"--pgdata={self.base}", f"--dbname={target}", "--checkpoint=fast", "--no-sync"]
        self._as_owner(str(find_binaries() / "pg_basebackup"), *words)

    def kill(self) -> None:
        """SIGKILL, as if the machine were lost: what was not archived is gone."""
        self.running.kill()

    def restore(self, to: datetime) -> None:
        """The data as they were then; PostgreSQL is not started."""
        shutil.move(self.data, self.directory / f"lost-{self.data.stat().st_ino}")
        self.data.mkdir(mode=0o700)
        self._give(self.data)
        moment = to.isoformat(sep=" ")
        if self.with_pgbackrest:
            self._pgbackrest("restore", "--type=time", f"--target={moment}", "--target-action=promote")
            return
        self._as_owner("cp", "-a", f"{self.base}/.", str(self.data))
        with (self.data / "postgresql.auto.conf").open("a") as settings:
            settings.write(
                f"restore_command = 'gunzip < {self.archive}/%f.gz > %p'\nrecovery_target_time = '{moment}'\n"
                "recovery_target_action = 'promote'\n"
            )
        (self.data / "recovery.signal").touch()
        self._give(self.data / "recovery.signal")

    async def start_restored(self) -> None:
        """Until it takes writes."""
        await asyncio.to_thread(self.start)

        async def in_recovery() -> bool:
            return bool(await self.value("SELECT pg_is_in_recovery()"))

        await eventually(in_recovery, lambda found: not found)

    async def value(self, query: str) -> Any:
        connection = await asyncpg.connect(self.url, timeout=HANG_SECONDS)
        try:
            return await connection.fetchval(query)
        finally:
            await connection.close()

    async def archived_to_now(self) -> None:
        """Everything that is committed up to now is in the archive."""
        segment = await self.value("SELECT pg_walfile_name(pg_switch_wal())")

        async def last() -> str:
            return str(await self.value("SELECT coalesce(last_archived_wal, '') FROM pg_stat_archiver"))

        await eventually(last, lambda found: found >= segment)

    def _pgbackrest(self, command: str, *words: str) -> None:
        self._as_owner("pgbackrest", f"--config={self.configuration}", f"--stanza={STANZA}", *words, command)

    def _as_owner(self, *words: str) -> None:
        """As the user of PostgreSQL, who owns the data."""
        owner = (self.directory / "cluster").stat()
        user = ["setpriv", f"--reuid={owner.st_uid}", f"--regid={owner.st_gid}", "--clear-groups"]
        done = subprocess.run(
            [*(user if os.geteuid() == 0 else []), *words],
            cwd=self.directory, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"

    def _give(self, path: Path) -> None:
        if os.geteuid() == 0:
            shutil.chown(path, "postgres", "postgres")


@contextmanager
def archived_postgres(database: str, *, with_pgbackrest: bool) -> Iterator[ArchivedPostgres]:
    directory = Path(mkdtemp(prefix="posthouse-archived-"))
    directory.chmod(0o755)  # PostgreSQL runs as another user
    made = ArchivedPostgres(directory, database, with_pgbackrest=with_pgbackrest)
    try:
        made.prepare()
        yield made
    finally:
        if made.server is not None:
            made.server.stop("immediate")
        shutil.rmtree(directory, ignore_errors=True)
