"""Leases on shards that a test moves."""

from dataclasses import dataclass


@dataclass
class MovedLeases:
    shards: frozenset[int]
    places: int
    since: float = float("-inf")

    def held(self) -> frozenset[int]:
        return self.shards

    def held_since(self, shard: int) -> float:
        del shard
        return self.since

    async def close(self) -> None:
        self.shards = frozenset()
