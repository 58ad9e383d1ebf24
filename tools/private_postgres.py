"""Runs a private PostgreSQL (see `posthouse.dev.postgres`) for tests, benchmarks and development:

python tools/private_postgres.py run --directory .run/postgres --port 54329
python tools/private_postgres.py run -- posthouse migrate
"""

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

from posthouse.dev.postgres import PostgresError as PostgresError
from posthouse.dev.postgres import PrivatePostgres as PrivatePostgres
from posthouse.dev.postgres import StopMode as StopMode
from posthouse.dev.postgres import find_binaries as find_binaries
from posthouse.dev.postgres import free_port as free_port


def _leave(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 (the shape of a signal handler)
    sys.exit(128 + number)


def _run_to_its_end(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """The cluster outlives the command: signals are passed on, and its end is awaited."""
    process = subprocess.Popen(command, env=environment)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: process.send_signal(number))
    return process.wait()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="A private PostgreSQL.")
    run = parser.add_subparsers(dest="act", required=True).add_parser(
        "run", help="start the cluster; run a command against it, or stay until interrupted"
    )
    run.add_argument("--directory", type=Path, help="where the data stays (default: temporary)")
    run.add_argument("--port", type=int, help="port on 127.0.0.1 (default: a free port)")
    run.add_argument("--database", default="posthouse", help="database to create and name in the URL")
    run.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a PostgreSQL setting")
    run.add_argument("command", nargs="*", help="after `--`: what to run with POSTHOUSE_DATABASE__URL set")
    given = parser.parse_args(arguments)
    settings = dict(pair.split("=", 1) for pair in given.set)
    signal.signal(signal.SIGTERM, _leave)
    try:
        with PrivatePostgres.start(given.directory, given.port, settings) as cluster:
            cluster.create_database(given.database)
            address = cluster.url(given.database)
            if given.command:
                return _run_to_its_end(given.command, {**os.environ, "POSTHOUSE_DATABASE__URL": address})
            print(f"PostgreSQL answers at {address} (Ctrl-C stops it; log: {cluster.log})", flush=True)
            signal.pause()
    except KeyboardInterrupt:
        return 0
    except PostgresError as error:
        print(f"private_postgres: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
