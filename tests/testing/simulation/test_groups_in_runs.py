"""Groups in random runs: they read everything, and the judges notice a wrong program, or a missing guard of the product."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import pytest
from test_nemesis import quiet

from strandline.client.admin.classic_assignment import decode_assignment
from strandline.client.consumer.records import TopicPartition
from strandline.controller.metadata.cluster_describe import is_draining
from strandline.controller.metadata.node_keys import DRAINING
from strandline.protocol.partitions import TopicIdPartition
from strandline.testing.simulation.cluster.cluster import Client
from strandline.testing.simulation.cluster.groups.classic_member import encode_assignment
from strandline.testing.simulation.cluster.groups.ledger import Stay
from strandline.testing.simulation.cluster.groups.reader import Reader
from strandline.testing.simulation.cluster.reassigner import Reassigner
from strandline.testing.simulation.group_plans import CLASSIC, EACH, NEWER, MemberPlan
from strandline.testing.simulation.options import Options, with_groups
from strandline.testing.simulation.runs.run import _Run, run_seed


def calm(seed: int, *protocols: str) -> Options:
    """One group of members of these protocols, without faults and other changes."""
    options = quiet(seed)
    drawn = with_groups(options, Random(seed))
    plan = next(member for member in drawn.members if member.protocol == NEWER)
    more = plan.options | {"rebalance_timeout_ms": 1000, "max_poll_interval_ms": 60_000, "enable_auto_commit": False}
    members = tuple(
        MemberPlan(
            "alpha",
            protocol,
            (options.topics[0].name,),
            more if protocol == NEWER else more | {"session_timeout_ms": 2500},
            begins_at_s=0.2 * number,
            commits=EACH,
        )
        for number, protocol in enumerate(protocols)
    )
    return drawn.replaced(members=members, group_work=(), kinds={}, faults=())


@pytest.mark.parametrize("protocols", [(NEWER, NEWER), (CLASSIC, CLASSIC), (CLASSIC, NEWER)], ids=" and ".join)
def test_members_read_and_commit_everything(protocols: Sequence[str]) -> None:
    report = run_seed(1, options=calm(1, *protocols))
    assert report.verdict == "ok", str(report)
    assert (report.marks["member.assigned"] > 0) == (NEWER in protocols)
    if len({*protocols}) == 1:  # A classic member that comes first forms a classic group, which the newer member converts.
        assert (report.marks["group.classic_rebalanced"] > 0) == (NEWER not in protocols)


def test_i39_program_skips_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    finish = Stay.finish

    def skip(stay: Stay, records: Mapping[TopicIdPartition, Sequence[int]]) -> None:
        finish(stay, {key: [offset for offset in offsets if offset != 3] for key, offsets in records.items()})

    monkeypatch.setattr(Stay, "finish", skip)
    report = run_seed(1, options=calm(1, NEWER))
    assert report.violations[0]["invariant"] == "I39", str(report)
    assert "and never finished [3]" in report.violations[0]["text"]


def test_i39_records_that_no_member_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reader, "subscribe", lambda self, stay: stay.consumer.subscribe("nothing"))
    report = run_seed(1, options=calm(1, NEWER))
    assert report.violations[0]["invariant"] == "I39", str(report)
    assert "has the owners [] in group alpha" in report.violations[0]["text"]


def test_drains_are_undone_before_groups_are_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The topic of the groups cannot be created while its brokers are drained."""

    async def drain_all(reassigner: Reassigner, client: Client, admin: Any, draw: Random) -> None:
        async def drain() -> None:
            for broker in range(1, reassigner.options.brokers + 1):
                await admin.alter_configs("broker", broker, {DRAINING: True})

        await drain()
        while reassigner.going:
            await asyncio.sleep(0.1)
        await asyncio.sleep(3.0)  # the last request is answered after the heal
        await drain()

    monkeypatch.setattr(Reassigner, "work", drain_all)
    options = calm(1, NEWER)
    late = tuple(dataclasses.replace(plan, begins_at_s=0.5) for plan in options.members)
    run = _Run(1, options.replaced(members=late, drains=True, orderly_end=False), None, False, "")
    report = run.run()
    assert report.verdict == "ok", str(report)
    assert list(report.trace.events(kinds="log.coordinator.topic_creation_failed")), "the drains came too late"  # type: ignore[union-attr]
    assert report.marks["member.assigned"] > 0
    image = run.phases.cluster.image()
    assert not any(is_draining(image, broker) for broker in run.phases.cluster.broker_ids)


def test_assignments_are_those_that_java_clients_write() -> None:
    assignment = encode_assignment({"orders": [0, 2], "clicks": [1]})
    assert decode_assignment(assignment) == [
        TopicPartition("clicks", 1),
        TopicPartition("orders", 0),
        TopicPartition("orders", 2),
    ]
    assert assignment == b"\0\1\0\0\0\2\0\6clicks\0\0\0\1\0\0\0\1\0\6orders\0\0\0\2\0\0\0\0\0\0\0\2\xff\xff\xff\xff"
