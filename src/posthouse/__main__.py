"""`posthouse`, or `python -m posthouse`."""

import gc
import os
import sys

# Imports create many objects that stay: looking for garbage among them takes a tenth of a short command's time.
gc.set_threshold(100_000)
# Pydantic would read the metadata of every installed package to look for plugins, and there are none.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")

from posthouse import crash  # noqa: E402
from posthouse.cli.app import app  # noqa: E402


def main() -> None:
    try:
        crash.arm(os.environ.get(crash.ENVIRONMENT))
    except crash.UnknownPoint as unknown:
        sys.exit(str(unknown))
    if os.environ.get("_POSTHOUSE_COMPLETE"):
        from posthouse.cli.app import register_shells

        register_shells()
    app(prog_name="posthouse")


if __name__ == "__main__":
    main()
