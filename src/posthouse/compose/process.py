"""How a process runs: its log, its garbage collection, its threads, and the reasons why it can't start."""

import ctypes
import gc
import json
import logging
import signal
import sys
from datetime import UTC, datetime
from typing import Final

import structlog

from posthouse.config import Settings


def collect_rarely() -> None:
    """Loaded modules stay for good, and requests and messages make no cycles: collect rarely, and only new objects."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


# How long the event loop waits for a thread that runs Python code: the default is 5 ms, and a request waits several
# times.
SWITCH_SECONDS: Final = 0.001
_PR_SET_PDEATHSIG: Final = 1


def end_with_parent() -> None:
    """From now on, this process gets SIGTERM when its parent ends, even if that was killed. Only Linux can do this."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def prefer_event_loop() -> None:
    sys.setswitchinterval(SWITCH_SECONDS)


log = structlog.get_logger(__name__)


def configure_logging(level: str) -> None:
    """Every process logs one JSON object per line."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        cache_logger_on_first_use=True,
    )
    _log_libraries()
    # Otherwise it would log, with a traceback, what anyone wrote into a bounce.
    logging.getLogger("flufl.bounce").setLevel(logging.CRITICAL)


def _log_libraries() -> None:
    """Write the logs of libraries (uvicorn, NATS, asyncio) to standard error in the same form."""
    root = logging.getLogger()
    if any(isinstance(handler.formatter, _JsonFormatter) for handler in root.handlers):
        return
    handler = logging.StreamHandler()
    handler.setFormatter(_JsonFormatter())
    root.addHandler(handler)


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "event": record.getMessage(),
            "logger": record.name,
            "level": record.levelname.lower(),
            "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat().replace("+00:00", "Z"),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def log_capture(settings: Settings) -> None:
    """Log at the start of a process that no mail leaves."""
    if settings.delivery.captures:
        log.warning("outbound_captured", advice='No mail leaves. Set delivery.outbound to "deliver" to send mail.')


class CannotListen(RuntimeError):  # noqa: N818 (reads as what it says)
    """A server can't listen on its address, or can't use its certificate."""
