"""Logs of every process: one JSON object a line."""

import logging

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
    # It would log, with a traceback, what strangers wrote into their bounces.
    logging.getLogger("flufl.bounce").setLevel(logging.CRITICAL)


def log_capture(settings: Settings) -> None:
    """Say at the start of a process that no mail leaves."""
    if settings.delivery.captures:
        log.warning("outbound_captured", advice='No mail leaves. Set delivery.outbound to "deliver" to send mail.')
