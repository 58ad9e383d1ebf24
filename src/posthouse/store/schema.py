"""Brings the tables up to date."""

from alembic import command
from alembic.config import Config

from posthouse.store.revision import DIRECTORY


def migrate(url: str, to: str = "head") -> None:
    """Apply every migration that is missing. Blocks, and runs its own event loop: call it from a thread."""
    config = Config()
    config.set_main_option("script_location", str(DIRECTORY).replace("%", "%%"))
    config.attributes["url"] = url
    command.upgrade(config, to)
