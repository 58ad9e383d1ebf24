"""The schema's version: bring it up to date, and say whether it is."""

from pathlib import Path
from typing import Final

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory

from posthouse.store.postgres import Connection

_DIRECTORY: Final = Path(__file__).parent / "migrations"
_REVISION: Final = "SELECT to_regclass('alembic_version') IS NOT NULL"


def _config(url: str | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(_DIRECTORY).replace("%", "%%"))
    if url is not None:
        config.attributes["url"] = url
    return config


def migrate(url: str) -> None:
    """Apply every migration that is missing. Blocks, and runs its own event loop: call it from a thread."""
    command.upgrade(_config(url), "head")


def newest_revision() -> str | None:
    return ScriptDirectory.from_config(_config()).get_current_head()


async def applied_revision(connection: Connection) -> str | None:
    if not await connection.fetchval(_REVISION):
        return None
    revision: str | None = await connection.fetchval("SELECT version_num FROM alembic_version")
    return revision
