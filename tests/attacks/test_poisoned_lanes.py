"""A hosted domain words its refusals as it likes, and a message can be refused as often as it is tried.

Neither slows another account's mail or mail to another domain. What a provider says to many still does.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from posthouse.flows.deliver.lane_queue import Turn
from posthouse.flows.deliver.outcomes import domain_feedback, served
from posthouse.mail.reply import Reply, reply_of
from posthouse.rules.ids import AccountId
from posthouse.rules.lane import LaneLimits, Limits
from posthouse.rules.learned_limits import LaneScope
from posthouse.rules.outcome import AttemptResult, Replied, Stage
from posthouse.wire.carrier import CarrierRequest, CarrierResult
from tests.support.delivery_flow import DeliveryFlow, open_delivery_flow
from tests.support.lanes import ONE, TWO, Lanes, names_of_lanes, ticket
from tests.support.nameserver import Nameserver

LIMITS: Final = LaneLimits(Limits(per_second_start=20.0))
WAIT_SECONDS_MAX: Final = 2.0
EVIL, FAIR, MAILBOXES = "customer.example", "fair.example", "gmail.com"
SMALL, GOOGLE = "one.example", "google"
GOOGLE_SERVER: Final = "aspmx.l.google.com"
ASKS_AN_HOUR: Final = "4.7.1 Too many invalid recipients, try again in 60 minutes"
TOO_FAST: Final = "4.7.28 Gmail has detected an unusual rate of unsolicited mail originating from your IP address."
TRIES: Final = 3
SUPPRESSED: Final = (
    "the address is suppressed: earlier mail to it bounced or was complained about, or the account blocks it"
)


def recorded() -> list[tuple[Stage, Reply]]:
    """What real servers said: the refusals of the tables of reply signals and of reasons."""
    folder = Path(__file__).parents[1] / "rules"
    replies = []
    for line in (folder / "reply_signals.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            _, stage, code, _, text = line.split(" ", 4)
            replies.append((Stage(stage), int(code), text))
    for line in (folder / "replies.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            code, _, text = line.split(" ", 2)
            replies.append((Stage.DOT, int(code), text))
    made = [(stage, reply_of(code, text.replace("\\n", "\n").encode().split(b"\n"))) for stage, code, text in replies]
    return [(stage, reply) for stage, reply in made if reply.code >= 400]


REPLIES: Final = recorded()


@pytest.fixture
async def names() -> AsyncIterator[Nameserver]:
    async with Nameserver() as names:
        names_of_lanes(names)
        names.records[FAIR, "MX"] = [f"10 {GOOGLE_SERVER}."]
        yield names


async def refuse(lanes: Lanes, turn: Turn, server: str, stage: Stage, reply: Reply) -> None:
    """The server refuses a bundle, as delivery would note it."""
    carried = CarrierResult((Replied(stage, reply),), server)
    about = turn.queue.name, turn.bundle.destination, carried, turn.bundle.message_id
    lanes.carry_out(lanes.flow.release_domain(turn.queue, turn.bundle, *domain_feedback(*about)))
    await lanes.finish(turn, *served(*about))


async def seconds_until_started(lanes: Lanes, account_id: AccountId, destination: str, lane: str) -> float:
    """How long new mail waits before its session begins, up to ten seconds."""
    begin = lanes.clock.monotonic()
    await lanes.sort(ticket(destination, account_id, lane=lane))
    while not lanes.turns and lanes.clock.monotonic() < begin + 10:
        lanes.clock.advance(seconds=0.5)
        for queue in list(lanes.flow.queues):
            lanes.carry_out(lanes.flow.advance(queue))
        await lanes.settle()
    for turn in list(lanes.turns):
        await lanes.finish(turn)
    return lanes.clock.monotonic() - begin


def test_there_are_two_hundred_recorded_refusals() -> None:
    assert len({(reply.code, reply.text) for _, reply in REPLIES}) >= 200


async def test_one_hosted_domain_delays_no_other_account_and_no_other_domain(names: Nameserver) -> None:
    delayed = []
    for stage, reply in REPLIES:
        lanes = Lanes(names, LIMITS)
        await lanes.sort(ticket(FAIR, TWO, lane=GOOGLE))
        await lanes.finish(lanes.turns[0])
        for message in range(1, TRIES + 1):
            await lanes.sort(ticket(EVIL, ONE, message=message * 64, lane=GOOGLE))
            for turn in list(lanes.turns):
                await refuse(lanes, turn, GOOGLE_SERVER, stage, reply)
        for account_id, destination in ((TWO, EVIL), (TWO, FAIR), (TWO, MAILBOXES), (ONE, FAIR), (ONE, MAILBOXES)):
            if await seconds_until_started(lanes, account_id, destination, GOOGLE) > WAIT_SECONDS_MAX:
                delayed.append((account_id.int, destination, reply))
        assert lanes.lane(GOOGLE).lane.learned == LIMITS.default.learned
    assert delayed == []


async def test_one_message_of_a_small_lane_delays_no_other_account(names: Nameserver) -> None:
    delayed = []
    for stage, reply in REPLIES:
        lanes = Lanes(names, LIMITS)
        for attempt in range(TRIES):
            lanes.clock.advance(minutes=20)
            await lanes.sort(ticket(SMALL, ONE, message=64, position=attempt, lane=SMALL))
            for turn in list(lanes.turns):
                await refuse(lanes, turn, "mx.one.example", stage, reply)
        if await seconds_until_started(lanes, TWO, SMALL, SMALL) > WAIT_SECONDS_MAX:
            delayed.append(reply)
        assert lanes.lane(SMALL).lane.learned == LIMITS.default.learned
    assert delayed == []


@dataclass
class SayingCarrier:
    """A carrier that refuses the given recipients, by their domain or address, and delivers to all others."""

    says: dict[str, tuple[Stage, int, str]] = field(default_factory=dict)
    server: str = GOOGLE_SERVER
    taken: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    async def carry(self, destination: str, request: CarrierRequest, _permit: object) -> CarrierResult:
        results: list[AttemptResult] = []
        for to in request.recipients:
            said = self.says.get(to) or self.says.get(destination)
            (self.taken if said is None else self.refused).append(to)
            stage, code, text = said or (Stage.DOT, 250, "2.0.0 OK")
            results.append(Replied(stage, reply_of(code, [text.encode()])))
        return CarrierResult(tuple(results), self.server)


@pytest.fixture
async def flow(database_url: str, carrier: SayingCarrier) -> AsyncIterator[DeliveryFlow]:
    async with open_delivery_flow(database_url, lane_limits=LIMITS, carrier=carrier) as flow:
        flow.serve(EVIL, FAIR, *[f"d{number}.example" for number in range(4)], host=GOOGLE_SERVER)
        flow.serve(SMALL)
        yield flow


@pytest.fixture
def carrier() -> SayingCarrier:
    return SayingCarrier()


async def test_the_hour_that_one_domain_asks_for_is_waited_for_there_only(
    flow: DeliveryFlow, carrier: SayingCarrier
) -> None:
    other = await flow.steps.another_sender("other")
    carrier.says[EVIL] = Stage.RCPT, 451, ASKS_AN_HOUR
    for number in range(5):
        await flow.steps.accept([f"u{number}@{EVIL}"])
        await flow.run_due()
    for number in range(5):
        await flow.steps.accept([f"v{number}@{MAILBOXES}"], sender=other)
    await flow.steps.accept([f"v@{FAIR}"])
    await flow.run_due()
    assert len(carrier.taken) == 6
    refused = len(carrier.refused)
    carrier.says.clear()
    flow.clock.advance(minutes=50)
    await flow.run_due()
    assert (len(carrier.refused), len(carrier.taken)) == (refused, 6)
    for _ in range(60):
        flow.clock.advance(minutes=1)
        await flow.run_due()
    assert len(carrier.taken) == 11


async def test_a_message_that_is_refused_at_each_try_slows_no_other_account(
    flow: DeliveryFlow, carrier: SayingCarrier
) -> None:
    other = await flow.steps.another_sender("other")
    carrier.says["evil@one.example"] = Stage.MAIL, 421, "4.7.0 too much mail, slow down"
    await flow.steps.accept(["evil@one.example"])
    while len(carrier.refused) < TRIES:
        await flow.run_due()
        await flow.steps.accept(["v@one.example"], sender=other)
        await flow.run_due()
        flow.clock.advance(minutes=1)
    assert len(carrier.taken) >= TRIES
    assert flow.delivery._learned_limits.limits_of(LaneScope("", SMALL)) is None
    assert (await flow.steps.fetch("SELECT count(*) FROM delivery_schedule WHERE destination = 'one.example'"))[0][
        0
    ] == 1


async def test_a_provider_that_refuses_many_slows_its_lane(flow: DeliveryFlow, carrier: SayingCarrier) -> None:
    other = await flow.steps.another_sender("other")
    carrier.says[MAILBOXES] = Stage.MAIL, 421, TOO_FAST
    for sender in (None, other):
        await flow.steps.accept([f"u@{MAILBOXES}"], sender=sender)
        await flow.run_due()
    await flow.steps.accept([f"v@{FAIR}"], sender=await flow.steps.another_sender("third"))
    await flow.run_due()
    assert (len(carrier.refused), carrier.taken) == (2, [])


async def test_several_hosted_domains_that_refuse_slow_the_providers_lane(
    flow: DeliveryFlow, carrier: SayingCarrier
) -> None:
    for number in range(4):
        carrier.says[f"d{number}.example"] = Stage.MAIL, 421, TOO_FAST
        await flow.steps.accept([f"u@d{number}.example"])
        await flow.run_due()
    await flow.steps.accept([f"v@{FAIR}"])
    await flow.run_due()
    # The fourth already waits.
    assert (len(carrier.refused), carrier.taken) == (3, [])


async def test_a_suppressed_address_is_decided_while_its_lane_rests(flow: DeliveryFlow, carrier: SayingCarrier) -> None:
    carrier.says[SMALL] = Stage.MAIL, 421, "4.7.0 too much mail, slow down"
    await flow.steps.fetch(
        "INSERT INTO suppressions (account_id, email, reason, at) VALUES ($1, 'gone@one.example', 'manual', now())",
        flow.steps.sender.account_id,
    )
    for number in range(2):
        await flow.steps.accept([f"u{number}@one.example"])
    await flow.run_due()
    refused = len(carrier.refused)
    gone = await flow.steps.accept(["gone@one.example"])
    kept = await flow.steps.accept(["kept@one.example"])
    await flow.run_due()
    assert await flow.recipients(gone) == [(0, "bounced", "released", 0, None, SUPPRESSED)]
    assert await flow.statuses(kept) == ["queued"]
    assert len(carrier.refused) == refused


async def test_on_sockets_a_hosted_domain_and_a_message_stop_no_other_mail(database_url: str) -> None:
    async with open_delivery_flow(database_url, lane_limits=LIMITS) as flow:
        flow.serve(EVIL, FAIR, host=GOOGLE_SERVER)
        flow.serve(SMALL)
        other = await flow.steps.another_sender("other")
        for number in range(3):
            await flow.steps.accept([f"421-rcpt+{number}@{EVIL}"])
        await flow.steps.accept(["421-rcpt@one.example"])
        await flow.run_due()
        for to in (f"v@{EVIL}", f"v@{FAIR}", "v@one.example"):
            await flow.steps.accept([to], sender=other)
        await flow.steps.accept([f"w@{FAIR}"])
        await flow.run_due()
        taken = sorted(mail.recipient for mail in flow.receiver.accepted)
        assert taken == [f"v@{EVIL}", f"v@{FAIR}", "v@one.example", f"w@{FAIR}"]
