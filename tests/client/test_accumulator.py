"""The accumulator's rules: partitions, memory, and the fast path."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.client.errors import BufferFull, ClientError, UnknownTopic, UsageError
from strandline.client.options import ProducerOptions
from strandline.client.producer.accumulator import Accumulator, TopicQueues
from strandline.client.producer.partition_queue import PartitionQueue
from strandline.client.producer.partitioner import murmur2, next_sticky, partition_for_key
from strandline.client.producer.record_sizes import RICH_OVERHEAD, headers_size_max
from strandline.protocol.records.reader import iter_records

GOLDEN = json.loads((Path(__file__).parent / "golden_partitions.json").read_text())
"""The partitions that Kafka's own Java classes choose; `java/GoldenPartitions.java` says how the file was generated."""


def test_keyed_records_go_where_java_sends_them() -> None:
    """Another hash would send a key to another partition than the Java clients do, and so break the order of the key."""
    assert len(GOLDEN["keys"]) == 174
    for text, hashed, partitions in GOLDEN["keys"]:
        key = bytes.fromhex(text)
        assert murmur2(key) == hashed
        assert [partition_for_key(key, count) for count in GOLDEN["partition_counts"]] == partitions


def test_first_sticky_partition_is_one_that_java_chooses() -> None:
    """It is the one that Java chooses for the same random number. Without any leader, it is one of all partitions."""
    for available, random, expected in GOLDEN["sticky"]:
        queues = TopicQueues("t")
        queues.update(5, available, lambda count, random=random: random % count)
        assert queues.sticky == expected


def test_sticky_partition_rotates_over_partitions_with_a_leader() -> None:
    assert [next_sticky(current, [0, 2, 5]) for current in (0, 2, 5, 1)] == [2, 5, 0, 2]


class DrivenAccumulator:
    """An accumulator with the test's clock; the test takes its batches and acknowledges them, as the sender would."""

    def __init__(self, **options: object) -> None:
        self.ready: list[PartitionQueue] = []
        self.now = 0.0
        self.accumulator = Accumulator(
            ProducerOptions(**options),
            now=lambda: self.now,
            wall_clock_ms=lambda: 1_700_000_000_000,
            on_ready=self.ready.append,
            first_sticky=lambda n: 0,
        )

    def take_all(self) -> dict[int, list[bytes | None]]:
        """The values that the sender would send, by partition."""
        sent: dict[int, list[bytes | None]] = {}
        for topic in self.accumulator.topics.values():
            for partition, queue in sorted(topic.queues.items()):
                if queue.needs_producer_id:
                    queue.set_producer_id(1, 0)
                while (batch := self.accumulator.take(queue, self.now, partial=True)) is not None:
                    assert batch.data is not None
                    assert len(batch.data) <= max(self.accumulator._options.batch_size, 61 + 100 + 30)
                    sent.setdefault(partition, []).extend(record.value for record in iter_records(batch.data))
                    queue.on_acked(batch)
                    batch.complete(0)
                    self.accumulator.release(batch)
        return sent


def test_keyless_records_fill_one_batch_after_another() -> None:
    driven = DrivenAccumulator(batch_size=400)
    driven.accumulator.update_topic("t", 3, [0, 1, 2])
    partitions = [driven.accumulator.append("t", None, None, bytes(50), None, None).batch.partition for _ in range(30)]
    runs = [partitions[0]] + [b for a, b in pairwise(partitions) if a != b]
    assert runs[:4] == [0, 1, 2, 0]
    assert len(runs) < 12


def test_bytes_are_counted_and_given_back() -> None:
    driven = DrivenAccumulator(batch_size=1000, buffer_memory=3000)
    driven.accumulator.update_topic("t", 1, [0])
    with pytest.raises(BufferFull, match="buffer_memory"):
        _ = [driven.accumulator.append("t", None, None, bytes(500), None, None) for _ in range(100)]
    assert 0 < driven.accumulator.buffered_bytes <= 3000
    driven.take_all()
    assert driven.accumulator.buffered_bytes == 0
    assert not driven.accumulator.incomplete


def test_a_batch_expires_wherever_it_stands() -> None:
    """It may be open, ready, or in flight: delivery_timeout_ms counts from the enqueue."""
    driven = DrivenAccumulator(batch_size=200, delivery_timeout_ms=1000)
    driven.accumulator.update_topic("t", 1, [0])
    for _ in range(6):
        driven.accumulator.append("t", None, None, bytes(100), None, None)
    queue = driven.accumulator.topics["t"].queues[0]
    queue.set_producer_id(1, 0)
    in_flight = queue.take(0.0, partial=False)
    assert in_flight is not None
    driven.now = 1.1
    late = driven.accumulator.expired(driven.now)
    for _, batch in late:
        batch.fail(ClientError("late"))
        driven.accumulator.release(batch)
    assert late[0] == (queue, in_flight)
    assert len(late) == 6
    assert queue.idle
    assert driven.accumulator.buffered_bytes == 0
    assert not driven.accumulator.bare_open


def test_parked_records_come_before_later_ones() -> None:
    driven = DrivenAccumulator()
    good = driven.accumulator.append("t", None, None, b"1", None, None)
    wrong = driven.accumulator.append("t", 9, None, b"2", None, None)
    driven.accumulator.update_topic("t", 1, [0])
    driven.accumulator.append("t", None, None, b"3", None, None)
    assert wrong.done
    with pytest.raises(UnknownTopic):
        wrong.result()
    assert driven.take_all() == {0: [b"1", b"3"]}
    assert good.result().offset == 0


def test_own_partitioner_is_asked_once_per_record() -> None:
    """A round-robin partitioner that is called twice for some records would skip partitions."""
    asked: list[tuple[bytes | None, list[int], list[int]]] = []

    def next_one(key: bytes | None, everything: list[int], available: list[int]) -> int:
        asked.append((key, everything, available))
        return (len(asked) - 1) % len(everything)

    driven = DrivenAccumulator(partitioner=next_one, batch_size=200)
    parked = driven.accumulator.append("t", None, b"k", b"0", None, None)
    driven.accumulator.update_topic("t", 3, [0, 2])
    receipts = [driven.accumulator.append("t", None, None, b"%d" % n + bytes(90), None, None) for n in range(1, 9)]
    assert [receipt.batch.partition for receipt in [parked, *receipts]] == [0, 1, 2] * 3
    assert asked[0] == (b"k", [0, 1, 2], [0, 2])
    assert len(asked) == 9
    assert driven.accumulator.append("t", 1, None, b"x", None, None).batch.partition == 1
    assert len(asked) == 9


class WholeNumber:
    """A whole number that is not an int, as numpy has them."""

    def __index__(self) -> int:
        return 2


def test_partitioner_may_return_any_whole_number() -> None:
    """aiokafka accepts one of numpy's; in a request it must be an int."""
    driven = DrivenAccumulator(partitioner=lambda key, everything, available: WholeNumber())
    parked = driven.accumulator.append("t", None, None, b"0", None, None)
    driven.accumulator.update_topic("t", 3, [0, 1, 2])
    receipts = [parked, driven.accumulator.append("t", None, b"k", b"1", None, None)]
    assert [(receipt.batch.partition, type(receipt.batch.partition)) for receipt in receipts] == [(2, int)] * 2


@pytest.mark.parametrize("choice", [3, -1, None, "0", 1.0, True, False])
def test_wrong_choice_of_a_partitioner_is_a_usage_error(choice: object) -> None:
    driven = DrivenAccumulator(partitioner=lambda key, everything, available: choice)
    parked = driven.accumulator.append("t", None, None, b"0", None, None)
    driven.accumulator.update_topic("t", 3, [0, 1, 2])
    with pytest.raises(UsageError, match=r"the partitioner returned .*, but t has the partitions 0 to 2"):
        parked.result()
    with pytest.raises(UsageError, match="the partitioner returned"):
        driven.accumulator.append("t", None, None, b"1", None, None)
    assert driven.accumulator.buffered_bytes == 0


def test_error_of_a_partitioner_fails_only_its_record() -> None:
    def fail_for_a(key: bytes | None, everything: list[int], available: list[int]) -> int:
        if key == b"a":
            raise KeyError(key)
        return 1

    driven = DrivenAccumulator(partitioner=fail_for_a)
    parked = [driven.accumulator.append("t", None, key, b"0", None, None) for key in (b"a", b"b")]
    driven.accumulator.update_topic("t", 3, [0, 1, 2])
    with pytest.raises(UsageError, match="the partitioner failed for a record of t: KeyError"):
        parked[0].result()
    assert parked[1].batch.partition == 1


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["one", "many", "key", "partition", "rich"]),
            st.integers(0, 100),
            st.integers(1, 30),
        ),
        max_size=40,
    )
)
def test_each_partition_keeps_call_order(steps: list[tuple[str, int, int]]) -> None:
    """All of a partition's records leave in the order of their calls, whether sent bare, keyed, with headers, or in bulk."""
    driven = DrivenAccumulator(batch_size=300)
    driven.accumulator.update_topic("t", 3, [0, 1, 2])
    number, expected = 0, {}

    def value(size: int) -> bytes:
        nonlocal number
        number += 1
        return b"%06d" % number + bytes(size % 95)

    for what, size, count in steps:
        if what == "many":
            values = [value(size + i) for i in range(count)]
            receipts = driven.accumulator.append_many("t", values)
            pairs = list(zip(receipts, values, strict=True))
        else:
            one = value(size)
            key = b"%d" % (size % 5) if what in ("key", "rich") else None
            headers = [("h", b"x")] if what == "rich" else None
            partition = size % 3 if what == "partition" else None
            pairs = [(driven.accumulator.append("t", partition, key, one, headers, None), one)]
        for receipt, one in pairs:
            expected.setdefault(receipt.batch.partition, []).append(one)
    assert driven.take_all() == expected
    assert driven.accumulator.buffered_bytes == 0


@given(st.binary(max_size=20) | st.none(), st.binary(max_size=300) | st.none(), st.integers(0, 3), st.integers(0, 2**40))
def test_a_records_size_is_never_underestimated(key: bytes | None, value: bytes | None, headers: int, timestamp_ms: int) -> None:
    """A batch that outgrew its estimate could be refused by the broker as too large."""
    from strandline.protocol.records.builder import encode_batch

    rich = [("nämé", b"value")] * headers
    encoded = encode_batch([(None, b"", [], 0), (key, value, rich, timestamp_ms)])
    estimate = RICH_OVERHEAD + len(key or b"") + len(value or b"") + headers_size_max(rich)
    assert len(encoded) - 61 - 7 <= estimate
