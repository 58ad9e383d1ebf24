"""What is wrong with a NATS server that carries the stream, from what it says of itself."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from posthouse.rules.check_up import DoctorCheck, expect

OLDEST_VERSION: Final = (2, 10)
ROOM_PART_MIN: Final = 0.1


@dataclass(frozen=True, slots=True)
class StreamReplicas:
    """`lagging` are replicas that are away or behind."""

    name: str
    replicas: int
    lagging: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class StreamServer:
    """`stored_bytes_max` is None without a limit."""

    version: tuple[int, int, int]
    streams: Sequence[StreamReplicas]
    stored_bytes: int
    stored_bytes_max: int | None


def check(address: str, server: StreamServer, replicas: int) -> Iterator[DoctorCheck]:
    """`replicas` is how many the settings want."""
    version = ".".join(map(str, server.version))
    at = f"at {address}"
    yield DoctorCheck("stream", True, f"NATS {version}, {len(server.streams)} streams", subject=f"{at} answers")
    oldest = ".".join(map(str, OLDEST_VERSION))
    yield expect(
        "stream_version",
        server.version[:2] >= OLDEST_VERSION,
        version,
        f"Upgrade nats-server to {oldest} or newer.",
        at,
    )
    few = [stream.name for stream in server.streams if stream.replicas < replicas]
    lagging = [f"{name} of {stream.name}" for stream in server.streams for name in stream.lagging]
    found = f"fewer than {replicas} of {', '.join(few)}" if few else f"away or behind: {', '.join(lagging)}"
    advice = (
        f"Raise them with `nats stream edit NAME --replicas {replicas}`, once there are so many servers."
        if few
        else "Start that server, or see its log; `nats stream report` shows when it has caught up."
    )
    is_well = not few and not lagging
    yield expect("stream_replicas", is_well, "all there" if is_well else found, advice, at)
    most = server.stored_bytes_max
    has_room = most is None or server.stored_bytes <= most * (1 - ROOM_PART_MIN)
    used = f"{server.stored_bytes // 1024**2:,} MiB used" + ("" if most is None else f" of {most // 1024**2:,}")
    yield expect(
        "stream_room",
        has_room,
        used,
        "Raise max_file_store of JetStream in nats-server's configuration, or start workers.",
        at,
    )
