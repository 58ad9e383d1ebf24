"""The schema: the newest version, that of a database, and the migrations from one to the other."""

from pathlib import Path
from typing import Final

from posthouse.rules.refusal import Code, Refusal
from posthouse.store.postgres import Connection, required

DIRECTORY: Final = Path(__file__).parent / "migrations"
TABLE: Final = "schema_revision"

# Before 1.0, revisions were counted from the same number, in Alembic's usual table.
_FOUND: Final = f"SELECT to_regclass('{TABLE}') IS NOT NULL, to_regclass('alembic_version') IS NOT NULL"
_MADE_BEFORE_1_0: Final = (
    "This database was made by a version before 1.0, whose tables can't be upgraded: set database.url to a new, empty "
    "database, or restart `posthouse dev` with --reset, which deletes its data."
)


def newest_revision() -> str:
    """Migration files are named after their revisions, which are numbers of four digits."""
    return max(file.name.partition("_")[0] for file in (DIRECTORY / "versions").glob("[0-9]*.py"))


async def applied_revision(connection: Connection) -> str | None:
    """The database's version; None without any tables. A version above the newest was applied by a newer release.

    Raises if the tables were made by a version before 1.0.
    """
    is_here, is_older = required(await connection.fetchrow(_FOUND))
    if is_here:
        found: str | None = await connection.fetchval(f"SELECT version_num FROM {TABLE}")
        return found
    if is_older:
        raise Refusal(Code.SERVICE_UNAVAILABLE, _MADE_BEFORE_1_0)
    return None


def migrate(url: str, to: str = "head") -> None:
    """Apply every migration that is missing. Blocks, and runs its own event loop: call it from a thread."""
    # Alembic takes a second to import, and every process asks for the version when it starts.
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(DIRECTORY).replace("%", "%%"))
    config.attributes["url"] = url
    command.upgrade(config, to)
