"""Evidence: what a refusal may teach, depending on who else was refused.

A reply is one server's statement about one message. A hosted domain can word it, a single message can provoke it, and
a server can quote the recipient's address in it. So a refusal first teaches only the narrowest branch of its lane:
what one account sends to one domain. The whole lane learns only from several refused messages: of several accounts, if
several accounts send there; and, where many domains share the lane, to several unrelated domains or to one of the
provider's own mailbox domains, whose replies are the provider's.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from posthouse.rules.ids import AccountId, MessageId
from posthouse.rules.lane import DeliveryFeedback, is_provider, lane_by_name
from posthouse.rules.learned_limits import Branch

MESSAGES_MIN: Final = 2
ACCOUNTS_MIN: Final = 2
DOMAINS_MIN: Final = 3
# Refusals further apart than this are not combined.
TOGETHER_SECONDS: Final = 900.0
# An account that sent within this time counts as one that sends there.
SENDS_SECONDS: Final = 24 * 3600.0
# Above these bounds, the oldest are forgotten.
BRANCHES_MAX: Final = 100
USED_MAX: Final = 1_000
# Second-level names under which countries give out domains, as in "example.co.uk".
_REGISTRIES: Final = frozenset({"ac", "co", "com", "edu", "go", "gob", "gov", "gv", "ne", "net", "or", "org"})


class Extent(Enum):
    """What a refusal is about."""

    BRANCH = auto()
    # The whole lane, although only this branch was refused.
    LANE_OF_BRANCH = auto()
    LANE = auto()


@dataclass(slots=True)
class _Refusals:
    at: float
    # The newest messages that were refused.
    message_ids: tuple[MessageId, ...]


class Evidence:
    """The evidence about one lane; `now` is a monotonic time in seconds."""

    __slots__ = ("_lane", "_refusals", "_senders", "_used")

    def __init__(self, lane: str) -> None:
        self._lane = lane
        self._refusals: dict[DeliveryFeedback, OrderedDict[Branch, _Refusals]] = {}
        # The last two accounts that sent, and when.
        self._senders: dict[AccountId, float] = {}
        # Each message counts as evidence once.
        self._used: OrderedDict[MessageId, None] = OrderedDict()

    def sent(self, account_id: AccountId, now: float) -> None:
        """Note that a message of the account was tried."""
        senders = self._senders
        if account_id not in senders and len(senders) >= ACCOUNTS_MIN:
            del senders[min(senders, key=lambda known: senders[known])]
        senders[account_id] = now

    def refused(self, branch: Branch, message_id: MessageId, served: DeliveryFeedback, now: float) -> Extent:
        """What this refusal is about, together with similar ones. Refusals that taught the lane are not used again."""
        if message_id in self._used:
            return Extent.BRANCH
        said = self._refusals.setdefault(served, OrderedDict())
        _note(said, branch, message_id, now)
        if not self._is_enough(said, now):
            return Extent.BRANCH
        del self._refusals[served]
        self._used.update({used: None for one in said.values() for used in one.message_ids})
        while len(self._used) > USED_MAX:
            self._used.popitem(last=False)
        return Extent.LANE if len(said) > 1 else Extent.LANE_OF_BRANCH

    def _is_enough(self, said: Mapping[Branch, _Refusals], now: float) -> bool:
        if not is_provider(self._lane):
            return self._are_several(said, now)
        own = {branch: one for branch, one in said.items() if lane_by_name(branch.destination) == self._lane}
        domains = {_registered(branch.destination) for branch in said}
        return self._are_several(own, now) or (len(domains) >= DOMAINS_MIN and self._are_several(said, now))

    def _are_several(self, spoken: Mapping[Branch, _Refusals], now: float) -> bool:
        messages = {message_id for said in spoken.values() for message_id in said.message_ids}
        accounts = {branch.account_id for branch in spoken}
        if len(messages) < MESSAGES_MIN or not accounts:
            return False
        others = any(at > now - SENDS_SECONDS and sender not in accounts for sender, at in self._senders.items())
        return not others or len(accounts) >= ACCOUNTS_MIN


def _note(said: OrderedDict[Branch, _Refusals], branch: Branch, message_id: MessageId, now: float) -> None:
    while said and next(iter(said.values())).at <= now - TOGETHER_SECONDS:
        said.popitem(last=False)
    before = said.pop(branch, None)
    others = () if before is None else tuple([known for known in before.message_ids if known != message_id])
    said[branch] = _Refusals(now, (*others, message_id)[-MESSAGES_MIN:])
    if len(said) > BRANCHES_MAX:
        said.popitem(last=False)


def _registered(domain: str) -> str:
    """The registered domain above this name, so that all names under it count once."""
    labels = domain.lower().split(".")
    is_country = len(labels) > 2 and len(labels[-1]) == 2 and labels[-2] in _REGISTRIES
    return ".".join(labels[-3:] if is_country else labels[-2:])
