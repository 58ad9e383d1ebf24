"""What is read from the head of a request, and its id."""

from starlette.types import Scope

from posthouse.clock import Clock
from posthouse.randomness import Randomness
from posthouse.rules import credential, ids
from posthouse.rules.ids import RequestId
from posthouse.rules.refusal import Code, Refusal


def network_of(scope: Scope) -> str:
    """The network that a request comes from, as it counts for limits."""
    client = scope.get("client")
    return credential.peer_network(client[0]) if client else ""


def check_given_once(scope: Scope, name: bytes, code: Code = Code.INVALID_REQUEST) -> None:
    """If a header is given twice, a proxy in front of us may have read the other one, so neither is used."""
    if [given for given, _ in scope["headers"]].count(name) > 1:
        raise Refusal(code, f"The header {name.decode().title()} is given more than once: send it once.")


class RequestIds:
    """A new id for every request, and for every connection whose bytes are not HTTP."""

    def __init__(self, clock: Clock, randomness: Randomness) -> None:
        self._clock = clock
        self._randomness = randomness

    def new(self) -> RequestId:
        return RequestId(ids.new_id(self._clock.now(), self._randomness.id_bytes()))
