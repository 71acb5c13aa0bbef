"""The lag of groups: the questions to the leaders, the lags that follow from their answers, and which lags are kept."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from thorough import examples

from strandline.broker.groups.lag import KEEP_S, LagTable, OffsetLag, Position
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.records import PartitionRecord, TopicRecord
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages.data import OffsetLagPartition, OffsetLagPartitionResponse

ORDERS = b"orders".ljust(16, b"-")
NOW_MS = 1_700_000_000_000
LEADERS = (1, 2, 1)
"""The leader of each partition of the topic; partition 3 has none."""


def image_of(*leaders: int) -> MetadataImage:
    records = [TopicRecord("orders", ORDERS)]
    partitions = [
        PartitionRecord(
            topic_id=ORDERS,
            partition=index,
            replicas=(1, 2),
            isr=(1, 2),
            leader=leader,
            leader_epoch=7,
            partition_epoch=7,
        )
        for index, leader in enumerate(leaders)
    ]
    return MetadataImage.empty().apply([*records, *partitions], 0, 1).image


IMAGE = image_of(*LEADERS, -1)


def at(offset: int, partition: int = 0, group_id: str = "readers") -> Position:
    return Position(group_id, "orders", ORDERS, partition, offset, 0)


class Leaders:
    """The leaders' answers: log start, high watermark and timestamps of each partition."""

    def __init__(self) -> None:
        self.starts = dict.fromkeys(range(4), 0)
        self.ends = dict.fromkeys(range(4), 100)
        self.silent: set[int] = set()
        """Partitions whose leaders do not answer."""
        self.asked: list[tuple[int, int, list[int]]] = []
        """Leader, partition and offsets of each question."""

    def timestamp(self, partition: int, offset: int) -> int:
        offset = max(offset, self.starts[partition])
        return NOW_MS - 1000 * (100 - offset) if offset < self.ends[partition] else -1

    def answer(self, question: OffsetLagPartition) -> OffsetLagPartitionResponse:
        index = question.partition
        times = [self.timestamp(index, offset) for offset in question.offsets]
        return OffsetLagPartitionResponse(ORDERS, index, 0, self.ends[index], self.starts[index], times)


class World:
    def __init__(self, series_max: int = 100) -> None:
        self.table = LagTable(series_max)
        self.leaders = Leaders()
        self.now = 1000.0

    def round(self, *positions: Position, part: int = 1000) -> dict[tuple[str, int], OffsetLag]:
        """Measure the positions; returns the results by group and partition."""
        self.leaders.asked.clear()
        self.table.begin()
        for first in range(0, len(positions), part):
            self._measure(positions[first : first + part])
        self.table.publish(self.now)
        return {(key[0], key[2]): lag for key, lag in self.table.lags.items()}

    def _measure(self, positions: tuple[Position, ...]) -> None:
        questions = self.table.questions(positions, IMAGE)
        answers = {}
        for leader, of_leader in questions.items():
            for key, question in of_leader.items():
                self.leaders.asked.append((leader, key[1], question.offsets))
                if key[1] not in self.leaders.silent:
                    answers[key] = self.leaders.answer(question)
        self.table.measure(positions, questions, answers, self.now, NOW_MS)


def test_lag_is_the_end_minus_the_committed_offset() -> None:
    lag = World().round(at(40))["readers", 0]
    assert (lag.records, lag.seconds) == (60, 60.0)


def test_group_that_has_read_all_has_no_lag() -> None:
    lag = World().round(at(100))["readers", 0]
    assert (lag.records, lag.seconds) == (0, 0)


def test_offset_above_the_end_is_no_lag() -> None:
    """A leader that was elected uncleanly may have less than the group has read."""
    lag = World().round(at(120))["readers", 0]
    assert (lag.records, lag.seconds) == (0, 0)


def test_deleted_records_count_but_do_not_wait() -> None:
    """`records` is the number that every client computes. `seconds` is the age of the oldest record that can still be read."""
    world = World()
    world.leaders.starts[0] = 90
    lag = world.round(at(40))["readers", 0]
    assert (lag.records, lag.seconds) == (60, 10.0)
    world.leaders.starts[0] = 100
    lag = world.round(at(41))["readers", 0]
    assert (lag.records, lag.seconds) == (59, 0)


def test_record_from_the_future_waits_for_no_time() -> None:
    world = World()
    world.leaders.timestamp = lambda partition, offset: NOW_MS + 5000  # type: ignore[method-assign]
    assert world.round(at(40))["readers", 0].seconds == 0


def test_record_without_a_timestamp_has_no_age() -> None:
    world = World()
    world.leaders.timestamp = lambda partition, offset: -1  # type: ignore[method-assign]
    lag = world.round(at(40))["readers", 0]
    assert (lag.records, lag.seconds) == (60, None)


# -- questions --------------------------------------------------------------------------------------------------------


def test_each_leader_is_asked_once_for_each_partition() -> None:
    world = World()
    world.round(at(40), at(50, 1), at(60, 2), at(41, 0, "others"), at(40, 0, "twins"))
    assert world.leaders.asked == [(1, 0, [40, 41]), (1, 2, [60]), (2, 1, [50])]


def test_question_names_the_epoch_that_the_leader_must_have() -> None:
    """A leader that was replaced and does not know it yet would answer with an old high watermark."""
    (question,) = World().table.questions([at(40)], IMAGE)[1].values()
    assert question.current_leader_epoch == 7


def test_timestamp_of_a_group_that_stands_still_is_looked_up_once() -> None:
    """The record may be on a cold disk, and its timestamp does not change."""
    world = World()
    world.round(at(40), at(50, 1))
    world.leaders.ends[0] = 200
    lags = world.round(at(40), at(51, 1))
    assert world.leaders.asked == [(1, 0, []), (2, 1, [51])]
    assert (lags["readers", 0].records, lags["readers", 0].seconds) == (160, 60.0)


def test_timestamp_is_looked_up_again_when_the_record_is_deleted() -> None:
    world = World()
    world.round(at(40))
    world.leaders.starts[0] = 90
    assert world.round(at(40))["readers", 0].seconds is None
    assert world.round(at(40))["readers", 0].seconds == 10.0
    world.round(at(40))
    assert world.leaders.asked == [(1, 0, [])]


def test_timestamp_is_looked_up_when_a_reader_falls_behind() -> None:
    world = World()
    assert world.round(at(100))["readers", 0].seconds == 0
    world.leaders.ends[0] = 101
    world.leaders.timestamp = lambda partition, offset: NOW_MS - 3000  # type: ignore[method-assign]
    assert world.round(at(100))["readers", 0].seconds == 3.0


# -- leaders that do not answer ---------------------------------------------------------------------------------------


def test_last_value_stays_for_a_while_without_an_answer() -> None:
    """A failover must not end the series, because alerts on it would start again."""
    world = World()
    world.round(at(40), at(40, 1))
    world.leaders.silent.add(1)
    world.now += KEEP_S
    lags = world.round(at(40), at(70, 1))
    assert lags["readers", 1].records == 60
    assert (world.table.unknown, lags["readers", 0].measured_at) == (1, world.now)
    world.now += 0.1
    assert ("readers", 1) not in world.round(at(40), at(70, 1))
    assert world.table.unknown == 1


def test_partition_without_a_leader_is_unknown() -> None:
    world = World()
    assert world.round(at(40, 3)) == {}
    assert (world.table.unknown, world.leaders.asked) == (1, [])


def test_error_of_a_partition_is_no_answer() -> None:
    world = World()
    refusal = OffsetLagPartitionResponse(ORDERS, 0, ErrorCode.OFFSET_NOT_AVAILABLE)
    world.leaders.answer = lambda question: refusal  # type: ignore[method-assign]
    assert world.round(at(40)) == {}
    assert world.table.unknown == 1


# -- bounds -----------------------------------------------------------------------------------------------------------


def test_largest_lags_are_kept_and_come_first() -> None:
    world = World(series_max=2)
    world.round(at(40), at(10, 1), at(70, 2))
    assert [lag.records for lag in world.table.lags.values()] == [90, 60]
    assert world.table.omitted == 1


def test_no_series_are_kept_if_none_are_wanted() -> None:
    world = World(series_max=0)
    assert world.round(at(40)) == {}
    assert world.table.omitted == 1


def test_results_appear_when_the_round_is_complete() -> None:
    """Until then, the results of the previous round are shown."""
    world = World()
    world.round(at(40))
    world.table.begin()
    world._measure((at(99),))
    assert [lag.records for lag in world.table.lags.values()] == [60]
    world.table.publish(world.now)
    assert [lag.records for lag in world.table.lags.values()] == [1]


def test_cleared_table_is_empty() -> None:
    world = World()
    world.round(at(40), at(40, 3))
    world.table.clear()
    assert (world.table.lags, world.table.unknown, world.table.complete_at) == ({}, 0, None)


positions = st.builds(at, st.integers(0, 120), st.integers(0, 3), st.sampled_from("abc"))
unique = st.lists(positions, unique_by=lambda position: position.key, max_size=12)


@settings(max_examples=examples(300), deadline=None)
@given(
    st.lists(st.tuples(unique, st.integers(0, 60), st.sets(st.integers(0, 2))), max_size=4), st.integers(1, 5), st.integers(0, 9)
)
def test_lags_follow_from_the_last_answers(
    rounds: list[tuple[list[Position], int, set[int]]], part: int, series_max: int
) -> None:
    """The results do not depend on the parts in which the positions are measured, nor on earlier rounds."""
    world = World(series_max)
    for wanted, start, silent in rounds:
        world.leaders.starts = dict.fromkeys(range(4), start)
        world.leaders.silent = silent
        world.now += KEEP_S + 1
        lags = world.round(*wanted, part=part)
        answered = [position for position in wanted if position.partition not in silent and position.partition < 3]
        expected = sorted(max(0, 100 - position.offset) for position in answered)
        assert [lag.records for lag in lags.values()] == list(reversed(expected))[:series_max]
        for lag in lags.values():
            assert lag.seconds in (None, max(0, 100 - max(lag.position.offset, start)))
