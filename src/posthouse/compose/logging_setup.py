"""Logs of every process: one JSON object a line."""

import json
import logging
from datetime import UTC, datetime

import structlog

from posthouse.config import Settings

log = structlog.get_logger(__name__)


def configure_logging(level: str) -> None:
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
    # It would log, with a traceback, what strangers wrote into their bounces.
    logging.getLogger("flufl.bounce").setLevel(logging.CRITICAL)


def _log_libraries() -> None:
    """What libraries log (uvicorn, NATS, asyncio) goes to standard error, in the same form."""
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
    """Say at the start of a process that no mail leaves."""
    if settings.delivery.captures:
        log.warning("outbound_captured", advice='No mail leaves. Set delivery.outbound to "deliver" to send mail.')
