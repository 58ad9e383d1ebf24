"""The network that a request comes from, as limits count it."""

from starlette.types import Scope

from posthouse.rules import credential


def network_of(scope: Scope) -> str:
    client = scope.get("client")
    return credential.peer_network(client[0]) if client else ""
