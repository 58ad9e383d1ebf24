"""Connections without a login, by the prefix of their address.

Each prefix has a limit. A full server still accepts a connection from a prefix that has few: it closes the oldest
connection of the prefix that has the most.
"""

from typing import Protocol


class Droppable(Protocol):
    @property
    def is_accepting(self) -> bool:
        """Whether a complete message is being accepted; then it is not dropped."""

    def abort(self) -> None:
        """Close immediately."""


class UnauthenticatedConnections:
    def __init__(self, per_prefix_max: int) -> None:
        self._per_prefix_max = per_prefix_max
        # The oldest first.
        self._by_prefix: dict[str, dict[Droppable, None]] = {}

    def has_capacity(self, prefix: str) -> bool:
        return len(self._by_prefix.get(prefix, ())) < self._per_prefix_max

    def add(self, connection: Droppable, prefix: str) -> None:
        self._by_prefix.setdefault(prefix, {})[connection] = None

    def remove(self, connection: Droppable, prefix: str) -> None:
        strangers = self._by_prefix.get(prefix, {})
        strangers.pop(connection, None)
        if not strangers:
            self._by_prefix.pop(prefix, None)

    def drop_for(self, prefix: str) -> bool:
        """Close a connection to make place for a new one of this prefix; returns whether it did."""
        most = max(self._by_prefix.values(), key=len, default={})
        # Otherwise two prefixes would take the same place from each other repeatedly.
        if len(most) <= len(self._by_prefix.get(prefix, ())) + 1:
            return False
        dropped = next((connection for connection in most if not connection.is_accepting), None)
        if dropped is None:
            return False
        dropped.abort()
        return True
