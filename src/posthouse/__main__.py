"""`posthouse`, or `python -m posthouse`."""

import os
import sys

from posthouse import crash
from posthouse.cli.app import app


def main() -> None:
    try:
        crash.arm(os.environ.get(crash.ENVIRONMENT))
    except crash.UnknownPoint as unknown:
        sys.exit(str(unknown))
    app()


if __name__ == "__main__":
    main()
