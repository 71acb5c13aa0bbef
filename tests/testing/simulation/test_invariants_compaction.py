"""I26 and I27: each wrong cleaning is found, and a right one is not reported."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from cleaner_kit import DAY_MS, clean, keyed
from invariant_bench import BROKERS, NOW_MS, Bench, bench

from strandline.storage.cleaner import batch_cleaning, cleaning, segment_writer
from strandline.storage.cleaner.offset_map import OffsetMap
from strandline.testing.simulation.invariants import producers, reads, rest

LATER_MS = NOW_MS + 2 * DAY_MS


@pytest.fixture
def at() -> Iterator[Bench]:
    with bench() as found:
        yield found
        if found.invariants.failure is not None:
            raise found.invariants.failure


def put(at: Bench, rows: str, brokers: tuple[int, ...] = BROKERS) -> None:
    """`put(at, "a1 b1 a-")`: one batch and one segment for each record, on these brokers, committed. `a-` deletes the key a."""
    leader, epoch = at.registration().leader, at.registration().leader_epoch
    if set(brokers) != set(at.registration().isr):
        at.change(isr=brokers)
    for row in rows.split():
        value = None if row[1:] == "-" else row.encode()
        at.log(leader).append_as_leader(keyed([(row[:1].encode(), value)]), epoch, NOW_MS)
        at.copy(leader, *(node for node in brokers if node != leader))
        for node in brokers:
            at.log(node).roll(NOW_MS)
    for node in (leader, *(node for node in brokers if node != leader)):
        at.raise_hw(node, at.log(leader).log_end_offset)


def clean_twice(at: Bench, node: int) -> None:
    """Clean the log twice, the second time so late that it removes the tombstones."""
    clean(at.log(node))
    clean(at.log(node), now_ms=LATER_MS)
    at.log(node).tail.clear()  # otherwise followers copy the last appends from memory


def judge(at: Bench) -> None:
    at.step()
    for node in BROKERS:
        rest.check_bytes(at.replica(node))
        producers.check_states(at.replica(node))


def held(at: Bench, node: int) -> list[int]:
    replica = at.replica(node)
    return [offset for offset in range(replica.path.start, replica.path.end) if offset not in replica.absent]


# -- right cleanings --------------------------------------------------------------------------------------------------


def test_replicas_that_are_cleaned_apart_may_differ(at: Bench):
    put(at, "a1 b1 a2 b2 a3 c1 x1")
    clean(at.log(1))
    clean(at.log(3))
    judge(at)
    assert [held(at, node) for node in BROKERS] == [[3, 4, 5, 6], [0, 1, 2, 3, 4, 5, 6], [3, 4, 5, 6]]


def test_tombstone_is_removed_after_its_horizon(at: Bench):
    put(at, "a1 b1 a- x1 x2")
    clean_twice(at, 1)
    judge(at)
    assert held(at, 1) == [1, 4]
    assert at.replica(1).deleted_below == 3 == at.log(1).tombstones_removed_below


def test_follower_copies_a_cleaned_log(at: Bench):
    put(at, "a1 b1 a- x1 x2", brokers=(1, 2))
    clean_twice(at, 1)
    at.log(3).tombstones_removed_below = at.log(1).tombstones_removed_below
    at.copy(1, 3)
    at.raise_hw(3, 5)
    judge(at)
    assert held(at, 3) == [1, 4]


def test_cleaned_log_is_found_by_a_new_process(at: Bench):
    put(at, "a1 b1 a2 x1")
    clean(at.log(1))
    at.start(1, number=2)
    judge(at)
    assert held(at, 1) == [1, 2, 3]


def test_first_segment_may_begin_below_the_log_start(at: Bench):
    put(at, "a1 b1 a2 x1")
    clean(at.log(3))
    at.log(3).increment_log_start_offset(2)
    at.log(3).truncate_to(4)
    judge(at)
    assert held(at, 3) == [2, 3]


def test_truncation_forgets_what_was_removed_above_it(at: Bench):
    put(at, "a1 a2 b1 x1")
    clean(at.log(3))
    assert list(at.replica(3).absent) == [0]
    at.replica(3).is_unclean = True  # the replica repairs itself
    at.log(3).truncate_fully_and_start_at(0)
    at.copy(1, 3)
    at.raise_hw(3, 4)
    judge(at)
    assert held(at, 3) == [0, 1, 2, 3]


def test_consumer_gets_what_is_left_of_a_batch(at: Bench):
    put(at, "a1 b1 a2 x1")
    clean(at.log(1))
    reads.on_records(at.replica(1), 4, at.log(1).read(0, 1 << 20, 4).buffers)
    at.step()
    assert at.orders.read_end > 0


# -- wrong ones -------------------------------------------------------------------------------------------------------


def test_i26_last_value_of_a_key_is_removed(at: Bench, monkeypatch: pytest.MonkeyPatch):
    put(at, "a1 b1 a2 x1")
    monkeypatch.setattr(OffsetMap, "kept_rows", lambda offset_map, header: None)
    monkeypatch.setattr(batch_cleaning, "_newest_rows", lambda layout, header, rules: [])
    with at.flags("I26", "the last value of the key"):
        clean(at.log(1))


def test_i26_record_above_the_high_watermark_is_removed(at: Bench):
    put(at, "a1 b1")
    for value in (b"1", b"2"):
        at.log(1).append_as_leader(keyed([(b"c", value)]), 0, NOW_MS)
        at.log(1).roll(NOW_MS)
    at.log(1).high_watermark = 4
    with at.flags("I26", "a value above the high watermark"):
        clean(at.log(1))


def test_i26_record_is_changed(at: Bench, monkeypatch: pytest.MonkeyPatch):
    put(at, "a1 b1 a2 x1")
    forged = keyed([(b"b", b"other")])
    forged[0:8] = (1).to_bytes(8, "big")
    forged[12:16] = (0).to_bytes(4, "big")
    original = cleaning.clean_batch

    def clean_batch(data: Any, header: Any, rules: Any, reader: Any) -> Any:
        return batch_cleaning.CleanedBatch(bytes(forged)) if header.base_offset == 1 else original(data, header, rules, reader)

    monkeypatch.setattr(cleaning, "clean_batch", clean_batch)
    with at.flags("I26", "at offset 1 of epoch 0, but its leader wrote"):
        clean(at.log(1))


def test_i26_tombstone_is_removed_before_its_horizon(at: Bench, monkeypatch: pytest.MonkeyPatch):
    put(at, "a1 a- b1 x1")

    def without_tombstones(layout: Any, _header: Any, _rules: Any, live: list[int]) -> list[int]:
        return [row for row in live if row not in layout.tombstones]

    monkeypatch.setattr(batch_cleaning, "_without_expired", without_tombstones)
    with at.flags("I26", "before its delete horizon"):
        clean(at.log(1))


def test_i26_log_is_not_as_clean_as_it_says(at: Bench):
    put(at, "a1 a2 b1 b2 x1")
    clean(at.log(1), keys=1)
    at.log(1).first_dirty_offset = 5
    with at.flags("I26", "reports a clean log below 5"):
        at.log(1).roll(NOW_MS)
        at.log(1).flush()
        at.step()


def test_i5_cleaning_leaves_a_hole(at: Bench, monkeypatch: pytest.MonkeyPatch):
    put(at, "a1 a2 b1 x1")
    monkeypatch.setattr(segment_writer, "make_fillers", lambda *_: [])
    with at.flags("I5", "left a hole"):
        clean(at.log(1))


def test_i26_consumer_gets_another_record(at: Bench):
    put(at, "a1 b1 a2 x1")
    clean(at.log(1))
    forged = keyed([(b"b", b"other")])
    forged[0:8], forged[12:16] = (1).to_bytes(8, "big"), (0).to_bytes(4, "big")
    with at.flags("I26", "but its leader wrote"):
        reads.on_records(at.replica(1), 4, [bytes(forged)])


def test_i27_follower_keeps_a_value_whose_tombstone_is_gone(at: Bench):
    """A deleted key returns: broker 3 has the value, was away, and copies on behind the tombstone."""
    put(at, "a1 b1")
    put(at, "a- x1 x2", brokers=(1, 2))
    clean_twice(at, 1)
    at.log(3).tombstones_removed_below = 5
    with at.flags("I27", "holds record 0 of the key b'a', which was deleted at offset 2"):
        at.copy(1, 3)
        at.step()


def test_i27_log_does_not_say_that_a_tombstone_is_gone(at: Bench):
    put(at, "a1 b1 a- x1 x2")
    clean_twice(at, 1)
    at.step()
    at.log(1).tombstones_removed_below = 2
    with at.flags("I27", "lacks the tombstone at 2, but it reports 2"):
        at.log(1).flush()
        at.step()


def test_i27_leader_reports_removed_tombstones_above_its_end(at: Bench):
    put(at, "a1 a2 x1")
    clean(at.log(1))
    at.log(1).tombstones_removed_below = 9
    with at.flags("I27", "reports removed tombstones below 9"):
        at.log(1).flush()
        at.step()


def test_i4_files_hold_what_was_removed(at: Bench):
    put(at, "a1 b1 a2 x1")
    clean(at.log(1))
    judge(at)
    del at.replica(1).absent[0]
    with at.flags("I4", "lack the records [0]"):
        rest.check_bytes(at.replica(1))
