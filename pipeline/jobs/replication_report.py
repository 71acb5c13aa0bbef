"""The replication report without Spark: from facts to findings. The stream (`replication_stream.py`) computes it on the
driver."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.pipeline.jobs.replication_cluster import cluster_timeline
from strandline.pipeline.jobs.replication_facts import Fact
from strandline.pipeline.jobs.replication_partition import Row, rows_of_partition
from strandline.pipeline.jobs.replication_result import Read, Replication, replication_of
from strandline.pipeline.jobs.replication_states import min_isr_of_topics


def report_of(
    facts: Sequence[Fact],
    read: Read,
    begin_us: int,
    end_us: int,
    *,
    since_us: int | None = None,
    until_us: int | None = None,
    topics: Sequence[str] = (),
) -> Replication:
    """Reports on these facts, which may be in any order. `begin_us` and `end_us` are the times of the first and last event in the
    logs, which need not be a fact. The other parameters are those of `replication_of`."""
    timeline = cluster_timeline((fact for fact in facts if fact.topic is None), begin_us, end_us)
    timeline.min_isr = min_isr_of_topics(facts)
    groups: dict[tuple[str, int], list[Fact]] = {}
    for fact in facts:
        if fact.topic is not None and fact.partition is not None:
            groups.setdefault((fact.topic, fact.partition), []).append(fact)
    rows: list[Row] = []
    for (topic, partition), group in groups.items():
        rows += rows_of_partition(timeline, topic, partition, group)
    return replication_of(timeline, rows, read, since_us=since_us, until_us=until_us, topics=topics)
