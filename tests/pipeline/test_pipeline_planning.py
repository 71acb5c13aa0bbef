"""`planning.py`, `offsets.py` and `bounds.py`: ranges lose and repeat no offset, limits are shared fairly, checkpoints are
checked."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.client.consumer.records import TopicPartition
from strandline.pipeline.bounds import of_position, starting_at, times_of
from strandline.pipeline.offsets import UNKNOWN_ID, ReadPosition, from_json, to_json
from strandline.pipeline.planning import Range, limited, split
from strandline.protocol.errors import UsageError

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)
ranges = st.lists(st.builds(Range, st.just("orders"), st.integers(0, 5), st.integers(0, 50), st.integers(50, 5000), st.just(3)))


@given(ranges, st.integers(0, 40), st.none() | st.integers(1, 900))
def test_pieces_cover_each_offset_once(wholes: list[Range], min_pieces: int, max_size: int | None) -> None:
    pieces = split(wholes, min_pieces, max_size)
    of_pieces = [(p.partition, offset) for p in pieces for offset in range(p.start, p.end)]
    assert of_pieces == [(r.partition, offset) for r in wholes for offset in range(r.start, r.end)]
    assert all(piece.size > 0 for piece in pieces)
    assert max_size is None or all(piece.size <= max_size for piece in pieces)
    assert len(pieces) >= min(min_pieces, len(of_pieces))


def test_largest_range_is_split_first_and_evenly() -> None:
    pieces = split([Range("orders", 0, 0, 10), Range("orders", 1, 0, 90)], 4)
    assert [(p.partition, p.size) for p in pieces] == [(0, 10), (1, 30), (1, 30), (1, 30)]


def test_only_the_first_piece_of_a_range_knows_the_epoch_before_it() -> None:
    """The other pieces begin after records that no task has read yet, so their epoch is not known."""
    assert [p.leader_epoch for p in split([Range("orders", 0, 0, 10, 3)], 2)] == [3, -1]


sizes = st.dictionaries(st.integers(0, 9), st.integers(0, 10_000), min_size=1)


@given(sizes, st.integers(1, 20_000))
def test_limit_is_used_up_and_every_partition_gets_a_share(offered: dict[int, int], most: int) -> None:
    places = {TopicPartition("orders", p): size for p, size in offered.items()}
    start = {place: ReadPosition(7) for place in places}
    end = limited(start, {place: ReadPosition(7 + size, 4) for place, size in places.items()}, most)
    taken = {place: at.offset - 7 for place, at in end.items()}
    busy = sum(size > 0 for size in places.values())
    assert all(0 <= taken[place] <= size for place, size in places.items())
    assert all(taken[place] > 0 for place, size in places.items() if size)
    assert sum(taken.values()) <= most + busy
    assert sum(taken.values()) >= min(most, sum(places.values()))


def test_shares_are_in_proportion_to_available_offsets() -> None:
    start, there = {A: ReadPosition(0), B: ReadPosition(0)}, {A: ReadPosition(900), B: ReadPosition(100)}
    assert limited(start, there, 100) == {A: ReadPosition(90), B: ReadPosition(10)}


def test_limit_does_not_exceed_the_log_of_a_recreated_topic() -> None:
    """With the old topic's offset and the new topic's id, the query would skip the new topic's records up to that offset."""
    start = {A: ReadPosition(1000, 3, b"old"), B: ReadPosition(0)}
    there = {A: ReadPosition(50, 0, b"new"), B: ReadPosition(1000)}
    assert limited(start, there, 10) == {A: ReadPosition(50, 0, b"new"), B: ReadPosition(10)}


# -- offsets of streams -----------------------------------------------------------------------------------------------

stored = st.dictionaries(
    st.builds(TopicPartition, st.sampled_from(["orders", "payments", "ä b"]), st.integers(0, 200)),
    st.builds(ReadPosition, st.integers(0, 2**62), st.integers(-1, 2**31)),
)
ids = st.fixed_dictionaries(
    dict.fromkeys(["orders", "payments", "ä b"], st.just(UNKNOWN_ID) | st.binary(min_size=16, max_size=16))
)


@given(stored, ids)
def test_equal_offsets_are_stored_as_equal_text(places: dict[TopicPartition, ReadPosition], ids: dict[str, bytes]) -> None:
    """Spark compares offsets as text."""
    places = {place: at._replace(topic_id=ids[place.topic]) for place, at in places.items()}
    turned = dict(reversed(list(places.items())))
    assert from_json(json.loads(json.dumps(to_json(places)))) == places
    assert json.dumps(to_json(places)) == json.dumps(to_json(turned))


def test_checkpoint_of_sparks_kafka_connector_is_accepted() -> None:
    assert from_json({"orders": {"1": 4, "0": 3}}) == {A: ReadPosition(3), B: ReadPosition(4)}


def test_checkpoint_without_topic_ids_is_accepted() -> None:
    """Its topic is assumed to be the current one. Spark must not run an empty batch only to store the id."""
    stored = {"epochs": {"orders": {"0": 2}}, "topics": {"orders": {"0": 3}}, "v": 1}
    assert from_json(stored) == {A: ReadPosition(3, 2)}
    assert not ReadPosition(3, 2).is_of_another_topic(ReadPosition(3, 2, b"i" * 16))
    assert ReadPosition(3, 2, b"h" * 16).is_of_another_topic(ReadPosition(3, 2, b"i" * 16))


@pytest.mark.parametrize(
    "damaged",
    [{"topics": {"orders": {"0": "x"}}}, {"topics": {"orders": 5}}, {"topics": {"orders": {"zero": 1}}}, {"orders": [1]},
     {"topics": {"orders": {"0": -1}}}, {"topics": None}, {"v": 1}, {"topics": {"orders": {"0": 1}}, "epochs": {"orders": 7}},
     {"topics": {"orders": {"0": 1}}, "ids": {"orders": "no hex"}}, {"topics": {"orders": {"0": 1}}, "ids": 7}],
)  # fmt: skip
def test_damaged_checkpoint_is_rejected_with_its_content(damaged: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="which are not offsets of the strandline source"):
        from_json(damaged)


def test_checkpoint_of_a_newer_version_is_rejected() -> None:
    with pytest.raises(UsageError, match="version 2"):
        from_json({"v": 2, "topics": {}})


# -- from where to where ----------------------------------------------------------------------------------------------

EARLIEST, LATEST = {A: 10, B: 20}, {A: 110, B: 120}


def test_offsets_may_be_words_or_numbers() -> None:
    assert of_position("startingOffsets", "earliest", [A, B], EARLIEST, LATEST) == EARLIEST
    assert of_position("startingOffsets", "latest", [A, B], EARLIEST, LATEST) == LATEST
    written = {"orders": {0: -2, 1: -1}}
    assert of_position("startingOffsets", written, [A, B], EARLIEST, LATEST) == {A: 10, B: 120}
    assert of_position("startingOffsets", {"orders": {0: 50, 1: 60}}, [A, B], EARLIEST, LATEST) == {A: 50, B: 60}


def test_offsets_for_other_partitions_than_those_read_are_rejected() -> None:
    with pytest.raises(UsageError, match="startingOffsets lacks orders-1"):
        of_position("startingOffsets", {"orders": {0: 5}}, [A, B], EARLIEST, LATEST)
    with pytest.raises(UsageError, match="names orders-7, which is not read"):
        times_of("startingOffsetsByTimestamp", {"orders": {0: 5, 1: 5, 7: 5}}, [A, B])


def test_timestamp_after_all_records_is_an_error_or_the_end() -> None:
    found, times = {A: 50, B: None}, times_of("startingTimestamp", 1234, [A, B])
    assert starting_at(found, times, LATEST, "latest") == {A: 50, B: 120}
    with pytest.raises(UsageError, match="no record of orders-1 is as young as the starting timestamp 1234"):
        starting_at(found, times, LATEST, "error")
