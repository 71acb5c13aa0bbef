"""Faults that strike consumer groups: requests and responses of members that are late or lost, and coordinators that move."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random

from strandline.controller.metadata.internal_topics import OFFSETS_TOPIC
from strandline.protocol import apis
from strandline.testing.simulation.kernel.network import Message
from strandline.testing.simulation.kernel.world import OutOfTime
from strandline.testing.simulation.nemesis.engine import Effect, Nemesis, kind
from strandline.testing.simulation.nemesis.leaders import step_down
from strandline.testing.simulation.options import FaultPlan

MESSAGES = (
    *[apis.CONSUMER_GROUP_HEARTBEAT] * 4,
    *[apis.OFFSET_COMMIT] * 4,
    apis.OFFSET_FETCH,
    apis.JOIN_GROUP,
    apis.SYNC_GROUP,
    apis.HEARTBEAT,
    apis.LEAVE_GROUP,
)
"""The API keys of the messages that are held or lost; one that is listed more often is drawn more often."""
MOVED_S = 4.0
"""Longest wait for another coordinator, in seconds."""


def _name(api_key: int, is_request: bool) -> str:
    return f"{apis.api_name(api_key)} {'request' if is_request else 'response'}"


@kind("group_message_held")
def _message_held(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    """A member's message arrives late, and so does everything behind it on its connection."""
    return message_held(nemesis, draw, MESSAGES)


def message_held(nemesis: Nemesis, draw: Random, messages: Sequence[int]) -> Effect:
    api_key, is_request, limit = draw.choice(messages), draw.random() < 0.6, draw.choice((1, 1, 3))
    hold = nemesis.network.hold(lambda m: m.api_key == api_key and m.is_request == is_request, limit)
    return Effect({"text": f"the next {_name(api_key, is_request)} is held back"}, (), hold.release)


@kind("group_message_lost")
def _message_lost(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    """The connection breaks when it delivers the message of a member."""
    return message_lost(nemesis, draw, MESSAGES)


def message_lost(nemesis: Nemesis, draw: Random, messages: Sequence[int]) -> Effect:
    api_key, is_request, times = draw.choice(messages), draw.random() < 0.2, draw.choice((1, 1, 3))
    breaks, after = nemesis.network.breaks, draw.random() < 0.3
    nemesis.network.break_on(lambda m: m.api_key == api_key and m.is_request == is_request, times, after=after, chance=1.0)
    entry = breaks[-1]

    def undo() -> None:
        if entry in breaks:
            breaks.remove(entry)

    return Effect({"text": f"a connection breaks at the next {_name(api_key, is_request)}"}, (), undo)


@kind("coordinator_moves")
def _coordinator_moves(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    """Another broker becomes the coordinator of groups, while a message of a member to or from the old one is held back."""
    return coordinator_moves(nemesis, fault, draw, OFFSETS_TOPIC, MESSAGES)


def coordinator_moves(
    nemesis: Nemesis, fault: FaultPlan, draw: Random, internal_topic: str, messages: Sequence[int]
) -> Effect | None:
    if nemesis.cluster.active_controller is None:
        return None
    topic = nemesis.cluster.image().topic(internal_topic)
    leaders = [] if topic is None else [(n, p.leader) for n, p in topic.partitions.items() if len(p.isr) > 1]
    leaders = [(n, leader) for n, leader in leaders if leader > 0 and nemesis.budget.may_touch((leader,))]
    if not leaders:
        return None
    number, leader = draw.choice(leaders)
    api_key, is_request = draw.choice(messages), draw.random() < 0.5
    moving = _move(nemesis, (internal_topic, number), leader, (api_key, is_request), draw)
    nemesis.spawn(moving, f"coordinator moves {fault.number}")
    what = f"another broker than {leader} becomes the leader of {internal_topic}-{number}"
    return Effect({"text": f"{what}, while the next {_name(api_key, is_request)} is held back"})


async def _move(nemesis: Nemesis, place: tuple[str, int], leader: int, kept: tuple[int, bool], draw: Random) -> None:
    internal_topic, number = place

    def matches(message: Message) -> bool:
        return (message.api_key, message.is_request) == kept and leader in (message.source, message.target)

    def has_moved() -> bool:
        topic = nemesis.cluster.image().topic(internal_topic)
        return topic is None or topic.partitions[number].leader not in (leader, -1)

    hold = nemesis.network.hold(matches, 1)
    try:
        with nemesis.budget.touching(leader):
            await nemesis.world.until(lambda: hold.has, draw.choice((0.0, 0.5, 1.0)) + 0.01, "a message to be held")
    except OutOfTime:
        pass
    try:
        if step_down(nemesis, leader):
            with nemesis.budget.touching(leader):
                await nemesis.world.until(has_moved, MOVED_S, "another broker coordinates")
                await asyncio.sleep(draw.choice((0.0, 0.0, 0.05, 0.5)))
    except OutOfTime:
        pass
    finally:
        hold.release()
