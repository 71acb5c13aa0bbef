"""Every kind of fault happens, ends, and is survived."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from strandline.testing.simulation.cluster.cluster import SimCluster
from strandline.testing.simulation.group_plans import GROUP_FAULTS
from strandline.testing.simulation.kernel.world import World
from strandline.testing.simulation.nemesis import KINDS
from strandline.testing.simulation.nemesis.budget import Budget
from strandline.testing.simulation.nemesis.engine import OPERATOR_LOOKS_S, Nemesis
from strandline.testing.simulation.options import (
    BEYOND_BUDGET,
    DIRECTORY_FAULTS,
    DOUBLE_FAULTS,
    FaultPlan,
    Options,
    draw_options,
    with_groups,
    with_transactions,
)
from strandline.testing.simulation.runs.run import run_seed
from strandline.testing.simulation.story.fault_words import BY_NODE_EVENTS, is_clause
from strandline.testing.simulation.transaction_plans import TRANSACTION_FAULTS


def quiet(seed: int, **changes: Any) -> Options:
    """A short run with three brokers, three controllers and one topic of three replicas, without anything that the test does not
    ask for."""
    drawn = next(
        options
        for options in map(draw_options, range(seed, seed + 1000))
        if options.brokers == 3 and options.controllers == 3 and options.topics[0].replication_factor == 3
        and options.topics[0].min_insync_replicas == 2 and not options.topics[0].has_retention and not options.members
    )  # fmt: skip
    topic = drawn.topics[0]
    return drawn.replaced(
        security=None,
        settings={name: value for name, value in drawn.settings.items() if "log.dirs" not in name},
        topics=(topic,),
        producers=tuple(plan for plan in drawn.producers if plan.topic == topic.name),
        consumers=tuple(plan for plan in drawn.consumers if plan.topic == topic.name),
        trims=False,
        reconfigures=False,
        reassigns=False,
        drains=False,
        moves_logs=False,
        racers=0,
        holders=0,
        transactional_topics=(),
        writers=(),
        committed_readers=0,
        admin=(), kinds={}, faults=(), faults_s=2.0, leave_out=0, orderly_end=False, loss_permitted=False, clock_drift=0.0,
        **changes,
    )  # fmt: skip


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_each_kind_of_fault_happens_and_is_survived(kind: str) -> None:
    """Four faults of a kind in two seconds: at least one finds a victim, and everything is healthy in the end."""
    apart = [*DIRECTORY_FAULTS, *GROUP_FAULTS, *TRANSACTION_FAULTS]
    options = quiet([*sorted(set(KINDS) - set(apart)), *apart].index(kind) * 100)
    if kind in TRANSACTION_FAULTS:
        options = with_transactions(options, Random(options.seed)).replaced(faults_s=3.0)
    if kind in GROUP_FAULTS:
        options = with_groups(options, Random(options.seed)).replaced(faults_s=3.0)
    if kind in DIRECTORY_FAULTS:
        options = options.replaced(settings=options.settings | {"log.dirs": "/d1,/d2"}, moves_logs=True)
    faults = tuple(FaultPlan(n, 0.1 + 0.4 * n, kind, 0.5, 1000 + n) for n in range(4))
    is_loss = kind in (*BEYOND_BUDGET, *DOUBLE_FAULTS)
    report = run_seed(options.seed, options=options.replaced(kinds={kind: 1.0}, faults=faults, loss_permitted=is_loss))
    assert report.verdict in ("ok", "loss permitted") if is_loss else report.verdict == "ok", str(report)
    assert report.faults.get(kind, 0) >= 1, report.skipped
    begun = [event for event in report.trace.events(kinds="fault.begin") if event.fields["fault"] == kind]  # type: ignore[union-attr]
    assert len(begun) == report.faults[kind]
    assert kind in BY_NODE_EVENTS or all(map(is_clause, begun)), "fault_words.py has no words for the fields that it has"


def test_fault_with_a_duration_ends() -> None:
    options = quiet(5)
    faults = (FaultPlan(0, 0.2, "cut_node", 0.5, 3), FaultPlan(1, 0.3, "pause", 0.7, 4))
    report = run_seed(options.seed, options=options.replaced(kinds={"cut_node": 1.0, "pause": 1.0}, faults=faults))
    events = {(e.kind, e.fields.get("number")): e.time for e in report.trace.events(kinds="fault.")}  # type: ignore[union-attr]
    for number, duration_s in ((0, 0.5), (1, 0.7)):
        assert events["fault.end", number] - events["fault.begin", number] == pytest.approx(duration_s, abs=0.01)


def test_a_process_that_ended_by_itself_is_started_again() -> None:
    """The restart is that of an operator or a process supervisor."""
    options = quiet(6)
    fault = FaultPlan(0, 0.2, "disk_full", 0.8, 1)
    report = run_seed(options.seed, options=options.replaced(kinds={"disk_full": 1.0}, faults=(fault,)))
    trace = report.trace
    assert trace is not None
    victim = trace.events(kinds="fault.begin")[0].node
    failed = [event.time for event in trace.events(kinds="node.failed") if event.node == victim]
    started = [event.time for event in trace.events(kinds="node.started") if event.node == victim]
    assert failed
    assert started[-1] > failed[-1]
    assert report.verdict == "ok"


@pytest.mark.parametrize("seed", range(8))
def test_heal_does_not_make_the_operator_forget_a_node(seed: int) -> None:
    """The heal cancels the operator's restart before its first step. If the operator believed that the node was about to return,
    a process that ends once more by itself would never be started again (seed 216: a controller with a damaged log was never
    emptied)."""
    world = World(seed)
    cluster = SimCluster(world, controllers=1, brokers=1)
    nemesis = Nemesis(cluster, quiet(1), Budget(cluster))

    async def act() -> None:
        await cluster.start_all()
        cluster.crash(1)
        nemesis.watch()
        await asyncio.sleep(OPERATOR_LOOKS_S)
        await nemesis.heal(left_out=[1])
        nemesis.watch()
        await world.until(lambda: cluster.machines[1].is_up, 5, "the operator starts the broker")

    try:
        world.run(act())
    finally:
        world.close()
