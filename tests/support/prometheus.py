"""A real Prometheus (Debian's package) with the rules of `deploy/monitoring`, which scrapes a machine each second."""

import asyncio
import json
import re
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import yaml

from tests.deploy.files import DEPLOY, documents
from tests.support.eventually import HANG_SECONDS
from tools.private_postgres import free_port

DIRECTORY: Final = DEPLOY / "monitoring"
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600}


@contextmanager
def prometheus(directory: Path, first_port: int, processes: int, *, times_faster: int = 1) -> Iterator[str]:
    """Its URL. It scrapes the processes that listen at this port and the next.

    With `times_faster`, every time in the rules is that much shorter.
    """
    (given,) = documents(DIRECTORY / "prometheus.yml")
    given["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    given["rule_files"] = [
        str(_written(DIRECTORY / file, directory / file, times_faster)) for file in given["rule_files"]
    ]
    targets = [f"127.0.0.1:{port}" for port in range(first_port, first_port + processes)]
    given["scrape_configs"][0]["static_configs"] = [{"targets": targets}]
    file, port = directory / "prometheus.yml", free_port()
    file.write_text(yaml.safe_dump(given))
    with (directory / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={file}",
                f"--storage.tsdb.path={directory / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


async def asked(url: str, path: str, **parameters: object) -> Any:
    """What Prometheus answers; while it can't be asked, that."""

    def ask() -> Any:
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{url}/api/v1/{path}?{query}", timeout=HANG_SECONDS) as answer:
            return json.load(answer)["data"]

    try:
        return await asyncio.to_thread(ask)
    except OSError as error:
        return {"error": str(error)}


def _written(source: Path, to: Path, times_faster: int) -> Path:
    (document,) = documents(source)
    for rule in [rule for group in document["groups"] for rule in group["rules"]]:
        rule["expr"] = re.sub(r"\[(\w+)\]", lambda found: f"[{_shorter(found[1], times_faster)}]", rule["expr"])
        if "for" in rule:
            rule["for"] = _shorter(rule["for"], times_faster)
    to.write_text(yaml.safe_dump(document))
    return to


def _shorter(time: str, times: int) -> str:
    return f"{max(1, int(time[:-1]) * _SECONDS[time[-1]] // times)}s"
