"""Assigns shards to workers: leases in a JetStream key-value bucket, distributed evenly.

Every worker keeps a key `worker.<its name>` and, for each shard it holds, a key `shard.<number>` with its
name in it. All keys of the bucket expire after its time to live unless they are written again.

- *Even.* From the names of the live workers, every worker computes the same shares (`shares`), takes only its own
  share and releases the others. Few shards move when a worker starts or stops.
- *Exclusive.* A key is created only if it does not exist and renewed only at the revision last written, so a shard
  that another worker took can't be renewed by mistake.
- *A holder knows when to stop.* It trusts a lease until a margin before the time to live, counted from when it
  **sent** the last confirmed renewal. The server counts from a later moment, so the holder stops first, whatever
  happens to the connection, the server or this process's event loop.
- *One number of shards.* A worker's name ends with the number of shards in its settings, and the largest among the
  live workers applies to all of them. While the setting changes, process by process, all divide the same shards.
- *No shard is left behind.* A shard beyond that number which still has tickets is assigned to a worker too.
- *Wiped data.* A bucket younger than its time to live may have lost keys that a worker still trusts: no shard is
  taken from it until it is old enough.
"""

import asyncio
import functools
import hashlib
import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import structlog
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import StorageType
from nats.js.errors import BadRequestError, KeyWrongLastSequenceError, NotFoundError
from nats.js.kv import KeyValue

from posthouse.wire.stream import TicketKind
from posthouse.wire.stream.connection import FAULTS, Outage, keep_connected, wait_for
from posthouse.wire.stream.puller import stream_name

log = structlog.get_logger(__name__)

BUCKET: Final = "SHARDS"
# Fractions of the time to live: how often a lease is renewed, and how long before its end the holder stops.
RENEW_PART: Final = 0.3
MARGIN_PART: Final = 0.2
ANSWER_SECONDS_MAX: Final = 1.0
CLOSE_SECONDS_MAX: Final = 2.0


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    lease_seconds: float = 5.0
    replicas: int = 1
    # Workers of the same kind share a bucket; other kinds have their own shards.
    bucket: str = BUCKET
    # The kind whose tickets may be in shards beyond that number.
    kind: TicketKind | None = None


@dataclass(frozen=True, slots=True)
class _Lease:
    revision: int
    until: float
    since: float


@dataclass(frozen=True, slots=True)
class _Bucket:
    lease_seconds: float
    age_seconds: float
    workers: frozenset[str]


class ShardLeases:
    """`worker` is a name of letters, digits and dashes, unique to this start of the process."""

    def __init__(
        self,
        worker: str,
        shards: int,
        settings: LeaseSettings | None = None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        if not re.fullmatch(r"[A-Za-z0-9-]{1,100}", worker):
            raise ValueError("a worker's name must have 1 to 100 letters, digits and dashes")
        self._worker = f"{worker}={shards}"
        # Over how many shards lanes are placed.
        self.places = shards
        self._shards = shards
        self._settings = settings or LeaseSettings()
        self._monotonic = monotonic
        self._leases: dict[int, _Lease] = {}
        # The shards of these leases, cached until the first of them ends: every turn of a lane asks for them.
        self._held: frozenset[int] = frozenset()
        self._held_until = float("-inf")
        self._closing = asyncio.Event()
        self._gone = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls, servers: Sequence[str], worker: str, shards: int, settings: LeaseSettings | None = None
    ) -> "ShardLeases":
        """Open on a separate connection, so that renewals never queue behind tickets."""
        leases = cls(worker, shards, settings)
        leases._gone.set()
        leases._keeping = asyncio.create_task(keep_connected(servers, f"leases-{worker}", leases._serve))
        return leases

    def held(self) -> frozenset[int]:
        now = self._monotonic()
        if now >= self._held_until:
            valid = {shard: lease.until for shard, lease in self._leases.items() if now < lease.until}
            self._held = frozenset(valid)
            self._held_until = min(valid.values(), default=now)
        return self._held

    def held_since(self, shard: int) -> float:
        lease = self._leases.get(shard)
        return float("-inf") if lease is None else lease.since

    async def close(self) -> None:
        self._closing.set()
        await wait_for(self._gone, CLOSE_SECONDS_MAX)
        self._leases.clear()
        self._held_until = float("-inf")
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)

    async def _serve(self, client: Client, outage: Outage) -> None:
        jetstream = client.jetstream(timeout=ANSWER_SECONDS_MAX)
        bucket = await self._opened(jetstream)
        self._gone.clear()
        try:
            while not self._closing.is_set():
                began_at = self._monotonic()
                seconds = await self._renew_all(client, bucket)
                outage.over()  # not before: while a leader is elected, a bucket can be opened and not written
                await wait_for(self._closing, began_at + seconds * RENEW_PART - self._monotonic())
            await self._release_all(jetstream, bucket)
        finally:
            self._gone.set()
        await asyncio.Event().wait()  # until cancelled: returning would count as a fault

    async def _opened(self, jetstream: JetStreamContext) -> KeyValue:
        try:
            return await jetstream.create_key_value(
                bucket=self._settings.bucket,
                ttl=self._settings.lease_seconds,
                storage=StorageType.FILE,
                replicas=self._settings.replicas,
            )
        except BadRequestError:
            # It exists with other settings; its time to live applies to all workers.
            bucket = await jetstream.key_value(self._settings.bucket)
            await self._add_copies(jetstream, bucket)
            return bucket

    async def _add_copies(self, jetstream: JetStreamContext, bucket: KeyValue) -> None:
        """Needed when an installation becomes a cluster: or no shard could be held while the one server is away."""
        configuration = (await bucket.status()).stream_info.config
        if (configuration.num_replicas or 1) < self._settings.replicas:
            await jetstream.update_stream(configuration, num_replicas=self._settings.replicas)

    async def _renew_all(self, client: Client, bucket: KeyValue) -> float:
        """Renew this worker's key, release shards outside its share, and renew or take its share."""
        await bucket.put(f"worker.{self._worker}", b"")
        state = await _bucket_state(client, self._settings.bucket)
        workers = tuple(sorted(state.workers | {self._worker}))
        self.places = max(_shards_of(worker) for worker in workers)
        share = shares(workers, self.places)[self._worker]
        left = await _shards_in_use(client, self._settings.kind) if self._settings.kind is not None else ()
        share |= {shard for shard in left if shard >= self.places and _first_choice(workers, shard) == self._worker}
        ours = [shard for shard in share if shard in self._leases or state.age_seconds >= state.lease_seconds]
        valid_seconds = state.lease_seconds * (1 - MARGIN_PART)
        await asyncio.gather(
            *(self._release(bucket, shard) for shard in self._leases.keys() - share),
            *(self._hold(bucket, shard, valid_seconds) for shard in ours),
        )
        return state.lease_seconds

    async def _hold(self, bucket: KeyValue, shard: int, valid_seconds: float) -> None:
        """Renew or take the lease, or drop it if another worker has it."""
        key, name = f"shard.{shard}", self._worker.encode()
        lease = self._leases.get(shard)
        sent_at = self._monotonic()
        since = sent_at if lease is None else lease.since
        try:
            if lease is None:
                revision = await bucket.create(key, name)
            else:
                revision = await bucket.update(key, name, last=lease.revision)
        except (KeyWrongLastSequenceError, NotFoundError):
            self._leases.pop(shard, None)
            self._held_until = float("-inf")
            found = await self._found(bucket, key, name, sent_at)
            if found is None:
                return
            revision, sent_at = found
            since = sent_at
        except FAULTS as fault:
            # The write may have arrived: the previous lease stays valid until its end.
            log.debug("lease_unanswered", shard=shard, cause=repr(fault))
            return
        self._leases[shard] = _Lease(revision, sent_at + valid_seconds, since)
        self._held_until = float("-inf")

    async def _found(self, bucket: KeyValue, key: str, name: bytes, sent_at: float) -> tuple[int, float] | None:
        """A write whose answer was lost may have made the key ours: write it again to be sure."""
        try:
            entry = await bucket.get(key)
            if entry.value != name or entry.revision is None:
                return None
            sent_at = self._monotonic()
            return await bucket.update(key, name, last=entry.revision), sent_at
        except FAULTS:
            return None

    async def _release(self, bucket: KeyValue, shard: int) -> None:
        lease = self._leases.pop(shard)  # before another worker can take it
        self._held_until = float("-inf")
        try:
            await bucket.delete(f"shard.{shard}", last=lease.revision)
        except FAULTS as fault:
            log.debug("lease_not_returned", shard=shard, cause=repr(fault))  # it expires

    async def _release_all(self, jetstream: JetStreamContext, bucket: KeyValue) -> None:
        # The worker's key first, so that the other workers stop counting it.
        name = self._settings.bucket
        await jetstream.purge_stream(f"KV_{name}", subject=f"$KV.{name}.worker.{self._worker}")
        await asyncio.gather(*(self._release(bucket, shard) for shard in list(self._leases)))


async def _bucket_state(client: Client, name: str) -> _Bucket:
    query = json.dumps({"subjects_filter": f"$KV.{name}.worker.*"}).encode()
    answer = await client.request(f"$JS.API.STREAM.INFO.KV_{name}", query, timeout=ANSWER_SECONDS_MAX)
    info: dict[str, Any] = json.loads(answer.data)
    if "error" in info:
        raise NotFoundError(description=str(info["error"]))
    # Both times are the server's, so its clock may be wrong without harm.
    age = datetime.fromisoformat(info["ts"]) - datetime.fromisoformat(info["created"])
    return _Bucket(
        lease_seconds=info["config"]["max_age"] / 1e9,
        age_seconds=age.total_seconds(),
        workers=frozenset(subject.rpartition(".")[2] for subject in info["state"].get("subjects") or ()),
    )


async def _shards_in_use(client: Client, kind: TicketKind) -> list[int]:
    """The shards that have tickets."""
    query = json.dumps({"subjects_filter": f"{kind.value}.*"}).encode()
    answer = await client.request(f"$JS.API.STREAM.INFO.{stream_name(kind)}", query, timeout=ANSWER_SECONDS_MAX)
    subjects = json.loads(answer.data).get("state", {}).get("subjects") or ()
    return [int(number) for subject in subjects if (number := subject.rpartition(".")[2]).isdecimal()]


def _shards_of(worker: str) -> int:
    """The number of shards in a worker's settings."""
    return int(worker.rpartition("=")[2])


def _first_choice(workers: Sequence[str], shard: int) -> str:
    """The worker that a shard ranks first."""
    return min(workers, key=lambda worker: _rank(worker, shard))


@functools.lru_cache(maxsize=8)
def shares(workers: tuple[str, ...], shards: int) -> dict[str, frozenset[int]]:
    """Shards of each worker: as equal as possible, the same for every process that sees the same workers.

    Each shard ranks the workers by its own hash and goes to the first worker that isn't full. So a new worker
    takes shards from all, and a stopped worker's shards go to all.
    """
    most = -(-shards // len(workers))
    held: dict[str, set[int]] = {worker: set() for worker in workers}
    for shard in range(shards):
        for worker in sorted(workers, key=lambda worker: _rank(worker, shard)):
            if len(held[worker]) < most:
                held[worker].add(shard)
                break
    return {worker: frozenset(own) for worker, own in held.items()}


def _rank(worker: str, shard: int) -> bytes:
    return hashlib.blake2b(f"{shard} {worker}".encode(), digest_size=8).digest()
