"""Leadership that moves to another broker and back, while a message or a replica of the first leadership is held back.

Most checks of leader epochs exist for a broker that leads again in a later epoch, with the same log and on the same connections:
a message or a follower of the first leadership finds the right broker and the wrong epoch. Faults that coincide by chance hardly
ever cause this, because in between the broker has to be fenced, to catch up, and to be elected again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from random import Random
from typing import Any, NamedTuple

from strandline.protocol import apis
from strandline.protocol.partitions import TopicIdPartition
from strandline.testing.simulation.kernel.network import Hold, Message
from strandline.testing.simulation.kernel.world import OutOfTime
from strandline.testing.simulation.nemesis.cuts import cut
from strandline.testing.simulation.nemesis.engine import Effect, Nemesis, kind
from strandline.testing.simulation.options import FaultPlan

FETCH_REQUEST, FETCH_RESPONSE = (apis.FETCH, True), (apis.FETCH, False)
PROPOSAL, DECISION = (apis.ALTER_PARTITION, True), (apis.ALTER_PARTITION, False)
PRODUCE = (apis.PRODUCE, True)
KEPT = (*[FETCH_REQUEST] * 3, *[FETCH_RESPONSE] * 3, PROPOSAL, *[DECISION] * 2, PRODUCE, None)
"""Messages to or from the leader, of which one is held until it leads again. None: no message."""
ASIDE = ("cut", "cut", "pause", "none")
"""How a third replica is kept from receiving the leader in between: it is cut off from the controllers, or paused."""
HELD_S, MOVED_S, TURNS_MAX = 0.6, 4.0, 4
"""Longest waits for the message and for a change of the leader, in seconds; and how many brokers are asked to resign."""


class Target(NamedTuple):
    """A partition whose leader is to lose the leadership and to get it back."""

    key: TopicIdPartition
    name: str
    leader: int
    third: int | None
    """The replica that is kept aside; None: there are only two."""


@kind("lead_returns")
def _lead_returns(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    """A leader loses a partition and gets it back; meanwhile a message of its first leadership, or a replica, is delayed."""
    target = _target(nemesis, draw)
    if target is None:
        return None
    kept, aside = draw.choice(KEPT), draw.choice(ASIDE) if target.third is not None else "none"
    nemesis.spawn(_round_trip(nemesis, target, kept, aside, draw), f"lead returns {fault.number}")
    name, leader, third = target.name, target.leader, target.third
    what = f"broker {leader} loses {name} and leads it again"
    if kept is not None:
        what += f", while {apis.api_name(kept[0])} {'request' if kept[1] else 'response'} of the first leadership is held"
    if aside != "none":
        what += f", and broker {third} {'is paused' if aside == 'pause' else 'reaches no controller'} meanwhile"
    return Effect({"text": what})


def _target(nemesis: Nemesis, draw: Random) -> Target | None:
    """Choose one of the partitions that another member of the ISR can lead."""
    cluster = nemesis.cluster
    if cluster.active_controller is None:
        return None
    image, running = cluster.image(), nemesis.running(cluster.broker_ids)
    found = []
    for topic_id, topic in image.topics_by_id.items():
        for index, p in topic.partitions.items():
            others = [n for n in p.replicas if n != p.leader and n in running]
            if p.leader in running and any(n in p.isr for n in others) and nemesis.budget.may_touch((p.leader,)):
                found.append((bytes(topic_id), index, topic.name, p.leader, others))
    if not found:
        return None
    topic_id, index, name, leader, others = draw.choice(found)
    third = draw.choice(others) if len(others) > 1 else None
    return Target((topic_id, index), f"{name}-{index}", leader, third)


async def _round_trip(nemesis: Nemesis, target: Target, kept: tuple[int, bool] | None, aside: str, draw: Random) -> None:
    touched = [target.leader] if aside == "none" or target.third is None else [target.leader, target.third]
    if not nemesis.budget.may_touch(touched):
        return
    with nemesis.budget.touching(*touched), ExitStack() as stack:
        try:
            if kept is not None:
                await _wait_for_message(nemesis, stack.enter_context(_holding(nemesis, target, kept, aside)), kept, target)
            back = stack.enter_context(_set_aside(nemesis, target.third, aside))
            with _forking(nemesis, target, draw) as delay_s:
                await asyncio.sleep(delay_s)
                await _take_away(nemesis, target, _is_channel(kept))
            await _give_back(nemesis, target)
            if draw.random() < 0.5:
                back()  # The third replica receives the later epoch before the message arrives.
                await asyncio.sleep(draw.choice((0.0, 0.05, 0.3)))
        except OutOfTime:
            pass


@contextmanager
def _holding(nemesis: Nemesis, target: Target, kept: tuple[int, bool], aside: str) -> Iterator[Hold]:
    """Hold the next message of this kind between the leader and a follower, or a controller."""
    (api_key, is_request), leader = kept, target.leader
    others = nemesis.cluster.broker_ids
    if api_key == apis.FETCH and aside != "none":
        others = [n for n in others if n == target.third]
    is_to_leader = is_request == (api_key != apis.ALTER_PARTITION)

    def matches(message: Message) -> bool:
        if message.api_key != api_key or message.is_request != is_request:
            return False
        at_leader, other = (message.target, message.source) if is_to_leader else (message.source, message.target)
        return at_leader == leader and (api_key != apis.FETCH or other in others)

    hold = nemesis.network.hold(matches, 1)
    try:
        yield hold
    finally:
        hold.release()


async def _wait_for_message(nemesis: Nemesis, hold: Hold, kept: tuple[int, bool] | None, target: Target) -> None:
    """Wait until a message is held; if none is sent in time, the story continues without it."""
    if _is_channel(kept) and target.third is not None:
        step_down(nemesis, target.third)  # When the follower returns, the leader has an ISR change to propose.
    try:
        await nemesis.world.until(lambda: hold.has, MOVED_S if _is_channel(kept) else HELD_S, "a message to be held")
    except OutOfTime:
        pass


def _is_channel(kept: tuple[int, bool] | None) -> bool:
    """Whether the held message is on the leader's connection to the controller, so that heartbeats or their responses wait behind
    it."""
    return kept is not None and kept[0] == apis.ALTER_PARTITION


@contextmanager
def _set_aside(nemesis: Nemesis, node: int | None, how: str) -> Iterator[Callable[[], None]]:
    """Within the block, pause the node or cut it off from the controllers; yields the function that ends this earlier."""
    undo: list[Callable[[], object]] = []
    if node is None:
        pass
    elif how == "pause":
        machine = nemesis.cluster.machines[node]
        machine.pause()
        undo.append(machine.resume)
    elif how == "cut":
        controllers = nemesis.cluster.controller_ids
        undo.append(cut(nemesis, [link for c in controllers for link in ((node, c), (c, node))]))

    def back() -> None:
        while undo:
            undo.pop()()

    try:
        yield back
    finally:
        back()


@contextmanager
def _forking(nemesis: Nemesis, target: Target, draw: Random) -> Iterator[float]:
    """In half of the cases, hold the fetches of all followers within the block, so that records that the leader appends meanwhile
    are in no other log when another broker leads. Yields how long the leader continues, in seconds."""
    if draw.random() < 0.5:
        yield 0.0
        return
    hold = nemesis.network.hold(lambda m: m.api_key == apis.FETCH and m.is_request and _is_fetch_of_replica(nemesis, m, target))
    try:
        yield draw.uniform(0.05, 0.4)
    finally:
        hold.release()


def _is_fetch_of_replica(nemesis: Nemesis, message: Message, target: Target) -> bool:
    return message.target == target.leader and message.source in nemesis.cluster.broker_ids


async def _take_away(nemesis: Nemesis, target: Target, is_channel: bool) -> None:
    """Let the leader ask to be fenced, as a broker that finds damage does, and wait until another broker leads. If its heartbeats
    cannot arrive, it is cut off instead, until its session has expired."""
    leader, undo = target.leader, None
    if is_channel or not step_down(nemesis, leader):
        controllers = nemesis.cluster.controller_ids
        undo = cut(nemesis, [link for c in controllers for link in ((leader, c), (c, leader))])
    try:
        await nemesis.world.until(lambda: _leader(nemesis, target) not in (leader, None), MOVED_S, "another broker leads")
    finally:
        if undo is not None:
            undo()


async def _give_back(nemesis: Nemesis, target: Target) -> None:
    """Let the present leader ask to be fenced until the first one leads again, at most `TURNS_MAX` times."""
    leader, until = target.leader, nemesis.world.until
    for _ in range(TURNS_MAX):
        await until(lambda: _may_lead(nemesis, target), MOVED_S, "it is in the ISR again")
        between = _leader(nemesis, target)
        if between == leader:
            return
        if between is None or not nemesis.budget.may_touch((between,)) or not step_down(nemesis, between):
            return
        await until(partial(_has_moved, nemesis, target, between), MOVED_S, "the leader changes")


def _has_moved(nemesis: Nemesis, target: Target, before: int) -> bool:
    return _leader(nemesis, target) != before


def step_down(nemesis: Nemesis, broker: int) -> bool:
    """Let the broker ask to be fenced for a moment, as the leader of a damaged log does. False: it cannot at present."""
    server, machine = nemesis.cluster.brokers.get(broker), nemesis.cluster.machines[broker]
    if server is None or not server.ready.is_set() or machine.loop is None or machine.is_paused:
        return False
    machine.call(server.lifecycle.step_down)
    return True


def _registration(nemesis: Nemesis, target: Target) -> Any:
    """The partition in the controllers' metadata; None: no controller is active, or the partition was deleted."""
    return None if nemesis.cluster.active_controller is None else nemesis.cluster.image().partition(target.key)


def _leader(nemesis: Nemesis, target: Target) -> int | None:
    """The present leader of the partition; None: there is none, or it is unknown."""
    found = _registration(nemesis, target)
    return None if found is None or found.leader < 0 else int(found.leader)


def _may_lead(nemesis: Nemesis, target: Target) -> bool:
    """Whether the first leader is in the ISR and unfenced, or leads already."""
    found = _registration(nemesis, target)
    if found is None or target.leader not in found.isr:
        return False
    known = nemesis.cluster.image().brokers.get(target.leader)
    return known is not None and not known.fenced
