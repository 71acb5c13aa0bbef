"""The report on replication without Spark: from facts to findings. The stream makes it on the driver, from the events it kept."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.pipeline.jobs.replication_cluster import cluster_story
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
    """`facts` in any order; the range is that of all events, also of those that are no facts. The rest is `replication_of`'s."""
    story = cluster_story((fact for fact in facts if fact.topic is None), begin_us, end_us)
    story.min_isr = min_isr_of_topics(facts)
    groups: dict[tuple[str, int], list[Fact]] = {}
    for fact in facts:
        if fact.topic is not None and fact.partition is not None:
            groups.setdefault((fact.topic, fact.partition), []).append(fact)
    rows: list[Row] = []
    for (topic, partition), group in groups.items():
        rows += rows_of_partition(story, topic, partition, group)
    return replication_of(story, rows, read, since_us=since_us, until_us=until_us, topics=topics)
