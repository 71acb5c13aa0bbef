"""Which partition of `__consumer_offsets` a group belongs to: compared with Kafka's own classes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.broker.coordination.partitioning import java_hash, partition_of

PARTITIONS = json.loads((Path(__file__).parent / "golden_records.json").read_text())["partitions"]


@pytest.mark.parametrize(("group_id", "hashed", "of_50", "of_7"), PARTITIONS)
def test_group_belongs_to_the_partition_that_kafka_computes(group_id: str, hashed: int, of_50: int, of_7: int) -> None:
    """Kafka's tools compute it, to find the records of a group. Among the ids is one with the smallest hash, whose absolute
    value is 0 in Kafka, and one with a character of two UTF-16 units."""
    assert java_hash(group_id) == hashed
    assert (partition_of(group_id, 50), partition_of(group_id, 7)) == (of_50, of_7)


@given(st.text(), st.integers(1, 1000))
def test_every_group_has_a_partition(group_id: str, partitions: int) -> None:
    assert 0 <= partition_of(group_id, partitions) < partitions
