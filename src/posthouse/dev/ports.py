"""The ports of `posthouse dev`: the wanted ports, or the next free ones."""

import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

# The error that ends `posthouse dev`.


class DevError(RuntimeError):
    """`posthouse dev` can't continue; the text says what to do."""


HTTP: Final = 8025
SUBMISSION: Final = 2587
SUBMISSION_TLS: Final = 2465
INBOUND: Final = 2525
TRIES_MAX: Final = 100
PORT_MAX: Final = 65_535


@dataclass(frozen=True, slots=True)
class Ports:
    http: int
    submission: int
    submission_tls: int
    inbound: int
    # The ports that were skipped because they were taken, with the port chosen instead.
    skipped: tuple[tuple[int, int], ...] = ()


def choose(host: str, http: int = HTTP, submission: int = SUBMISSION) -> Ports:
    chosen: list[int] = []
    skipped: list[tuple[int, int]] = []
    for wanted in (http, submission, SUBMISSION_TLS, INBOUND):
        port = next((port for port in _from(wanted) if port not in chosen and _is_free(host, port)), None)
        if port is None:
            raise DevError(f"no port from {wanted} to {wanted + TRIES_MAX - 1} is free: choose another port")
        chosen.append(port)
        if port != wanted:
            skipped.append((wanted, port))
    http, submission, submission_tls, inbound = chosen
    return Ports(http, submission, submission_tls, inbound, tuple(skipped))


def _from(wanted: int) -> Iterator[int]:
    return iter(range(wanted, min(wanted + TRIES_MAX, PORT_MAX + 1)))


def _is_free(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        # Connections of the last start that are still closing don't count; a listener does.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen()
        except OSError:
            return False
    return True
