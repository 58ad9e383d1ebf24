"""The HTTP load: wrk, made to send a number of messages and no more, as a relay's load does."""

import json
import re
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from string import Template
from typing import Any, Final

from bench.load import LoadError
from bench.relay import LOAD_STOP_SECONDS_MAX, Process, ends_with_parent
from bench.served import program

SECONDS_MAX: Final = 600

_RESULT: Final = re.compile(r"^result (\{.*\})$", re.MULTILINE)

# wrk knows a time to stop at, not a number. When all have been sent, what it is given to send is empty: its
# connections then wait in silence until a signal ends it. Its first request is asked for and thrown away.
_SCRIPT: Final = Template("""\
local requests = {
$requests
}
local count = -1

function request()
  count = count + 1
  if count > $mails then
    return ""
  end
  local ready = requests[count % #requests + 1]
  return ready[1] .. string.format("$run-%09d", count) .. ready[2]
end

function done(summary, latency, _)
  local errors = summary.errors
  io.write(string.format(
    'result {"answered": %d, "refused": %d, "broken": %d}\\n',
    summary.requests, errors.status, errors.connect + errors.read + errors.write))
end
""")


def start(script: Path, requests: Sequence[str], *, port: int, mails: int, connections: int, run: str) -> Process:
    """So many of the requests, in turn; each run's keys begin with its name."""
    script.write_text(_SCRIPT.substitute(run=run, mails=mails, requests=",\n".join(requests)))
    return subprocess.Popen(
        [
            *ends_with_parent(),
            str(program()),
            "--threads=1",
            f"--connections={min(connections, mails)}",
            f"--duration={SECONDS_MAX}s",
            "--timeout=30s",
            f"--script={script}",
            f"http://127.0.0.1:{port}",
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def ended_well(load: Process, mails: int) -> None:
    if load.poll() is None:
        load.send_signal(signal.SIGINT)
    output = load.communicate(timeout=LOAD_STOP_SECONDS_MAX)[0].decode(errors="replace")
    found = _RESULT.search(output)
    if found is None:
        raise LoadError(f"wrk failed ({load.returncode}):\n{output[-2000:]}")
    said: dict[str, Any] = json.loads(found[1])
    if said != {"answered": mails, "refused": 0, "broken": 0}:
        raise LoadError(f"not every one of {mails:,} requests was answered with 202: {said}")
