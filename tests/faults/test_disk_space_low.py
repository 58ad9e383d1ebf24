"""A volume fills under a real PostgreSQL: mail is refused while there is still space, and PostgreSQL stays healthy."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import fresh_database
from tests.support.disk_shortage import check_disk_shortage
from tests.support.service_processes import prepare_processes
from tests.support.smtp_listeners import SmtpListeners
from tools.private_postgres import PrivatePostgres

pytestmark = pytest.mark.long

MIB = 1024 * 1024
VOLUME_MIB = 512
FREE_MIB_MIN = 96
LEFT_MIB = 72
# As little as PostgreSQL can run with: the volume is in memory.
SETTINGS = {"shared_buffers": "32MB", "min_wal_size": "32MB", "max_wal_size": "64MB"}


@pytest.fixture
def small_volume() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="posthouse-volume-"))
    mount = ["mount", "-t", "tmpfs", "-o", f"size={VOLUME_MIB}m,mode=755", "tmpfs", str(directory)]
    try:
        if os.geteuid() or not shutil.which("mount") or subprocess.run(mount, check=False).returncode:
            pytest.skip("a small volume needs root and permission to mount")
        try:
            yield directory
        finally:
            subprocess.run(["umount", "--lazy", str(directory)], check=True)
    finally:
        directory.rmdir()


@pytest.fixture
def cluster(small_volume: Path) -> Iterator[PrivatePostgres]:
    with PrivatePostgres.start(small_volume / "postgres", settings=SETTINGS) as running:
        fresh_database.create(running, "posthouse")
        yield running


def free_bytes(directory: Path) -> int:
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize


async def test_a_filling_volume_causes_refusals_before_postgresql_fails(
    cluster: PrivatePostgres, small_volume: Path, tmp_path: Path
) -> None:
    filler = small_volume / "filler"
    assert free_bytes(small_volume) > 2 * FREE_MIB_MIN * MIB, "PostgreSQL itself takes too much of the volume"

    async def use_up() -> None:
        with filler.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, free_bytes(small_volume) - LEFT_MIB * MIB)

    async def give_back() -> None:
        filler.unlink()

    listeners = SmtpListeners.make(tmp_path)
    settings = {
        **listeners.settings,
        "DISK_SPACE__DIRECTORY": str(cluster.directory),
        "DISK_SPACE__FREE_BYTES_MIN": str(FREE_MIB_MIN * MIB),
    }
    async with prepare_processes(cluster.url("posthouse"), tmp_path, stream="memory", **settings) as processes:
        await check_disk_shortage(processes, listeners, use_up, give_back)
    said = cluster.log.read_text(errors="replace")
    assert said.count("ready to accept connections") == 1, "PostgreSQL ended in between"
    assert [word for word in ("PANIC", "No space left", "recovery") if word in said] == []
