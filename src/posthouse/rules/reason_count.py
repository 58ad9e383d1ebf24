"""Counts of bounces, failures and deferrals by mailbox provider, status code and reason, bounded for each day."""

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from posthouse.mail.reply import enhanced_of
from posthouse.rules import usage
from posthouse.rules.delivery_reason import DeliveryReason, reason_of
from posthouse.rules.ids import MessageId

# Of an account and day; a server can invent codes, and what is beyond is counted together.
KEYS_A_DAY_MAX: Final = 200


class ReasonKey(NamedTuple):
    """`result` is bounced, failed or deferred; `code` is an enhanced status or SMTP code, "" without a reply."""

    provider: str
    result: str
    code: str
    reason: DeliveryReason


class ReasonCount(NamedTuple):
    """`example_id` is the newest message that it happened to."""

    times: int
    example_id: MessageId


def key_of(result: str, exchange: str | None, code: int | None, response: str | None) -> ReasonKey:
    status = "" if code is None else enhanced_of(code, response or "") or str(code)
    return ReasonKey(usage.provider_of(exchange), result, status, reason_of(result, code, response))


def sum_of(first: ReasonCount | None, second: ReasonCount) -> ReasonCount:
    if first is None:
        return second
    return ReasonCount(first.times + second.times, max(first.example_id, second.example_id))


def within_bound(
    known: Collection[ReasonKey], found: Mapping[ReasonKey, ReasonCount], keys_max: int = KEYS_A_DAY_MAX
) -> dict[ReasonKey, ReasonCount]:
    """What is to be added to a day that has the `known` keys: new keys that don't fit are counted as `other`."""
    room = max(0, keys_max - len(known))
    bounded: dict[ReasonKey, ReasonCount] = {}
    for key, count in sorted(found.items(), key=lambda item: (-item[1].times, item[0])):
        if key not in known:
            if room == 0:
                key = ReasonKey(usage.OTHER, key.result, usage.OTHER, DeliveryReason.OTHER)
            else:
                room -= 1
        bounded[key] = sum_of(bounded.get(key), count)
    return bounded
