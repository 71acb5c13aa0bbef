"""The requests of operators in a scenario: to drain a broker, and to elect a leader uncleanly.

The commands of `strandline` do the same for all topics; a scenario touches only the topic of its load.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from strandline.chaos.drivers import DriverError
from strandline.chaos.run_state import RunState
from strandline.client import Admin, ElectionResult, ReassignmentResult, TopicPartition
from strandline.client.admin.placement import plan_drain
from strandline.protocol.errors import ErrorCode
from strandline.reach import reach


async def drain(state: RunState, names: Sequence[str]) -> None:
    """Mark the brokers as draining, so that they get no new replicas, and begin to move the topic's leaders and replicas away."""
    async with Admin(**reach(state.driver.bootstrap)) as admin:
        racks = {b.broker_id: b.rack for b in (await admin.describe_cluster()).brokers}
        for broker_id in state.ids(names):
            await admin.alter_configs("broker", broker_id, {"broker.draining": True})
            del racks[broker_id]
        for broker_id in state.ids(names):
            (topic,) = await admin.describe_topics([state.topic])
            current = {TopicPartition(topic.name, p.partition): p.replicas for p in topic.partitions}
            plan = plan_drain(current, racks, broker_id)
            _refuse_errors(await admin.alter_partition_reassignments({tp: plan[tp] for tp in plan}))
            await admin.elect_leaders(list(plan))  # the wanted leader may lead already, or not be in sync yet


async def undrain(state: RunState, names: Sequence[str]) -> None:
    """Let the brokers get replicas again."""
    async with Admin(**reach(state.driver.bootstrap)) as admin:
        for broker_id in state.ids(names):
            await admin.alter_configs("broker", broker_id, {"broker.draining": None})


async def elect(state: RunState, name: str) -> None:
    """Elect this broker uncleanly for each partition of the topic that has no leader."""
    (broker_id,) = state.ids([name])
    leaderless = [TopicPartition(state.topic, p) for p, each in state.watch.picture.partitions.items() if each.leader < 0]
    async with Admin(**reach(state.driver.bootstrap)) as admin:
        results = await admin.elect_leaders(leaderless, election="unclean", leader=broker_id)
    _refuse_errors(results)


def _refuse_errors(results: Sequence[ReassignmentResult | ElectionResult]) -> None:
    """Raise DriverError with the first rejected partition. ELECTION_NOT_NEEDED is accepted, because an earlier attempt of the
    request may have succeeded."""
    for result in results:
        if result.code not in (ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED):
            raise DriverError(f"{result.partition.topic}-{result.partition.partition}: {result.message or result.code.name}")


OF_OPERATORS: Mapping[str, Callable[[RunState, Sequence[str]], Awaitable[None]]] = {"drain": drain, "undrain": undrain}
"""Actions that are requests to the brokers: the fault `drain`, and `undrain`, which heals it."""
