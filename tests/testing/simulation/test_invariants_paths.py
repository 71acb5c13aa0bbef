"""A log is a path in the tree of all batches; these are the questions that a path answers."""

from __future__ import annotations

from random import Random

from strandline.testing.simulation.invariants.paths import NOTHING, Batch, Path, Tree


def path(*runs: tuple[int, int], start: int = 0) -> Path:
    """A path from runs of (epoch, end of its records)."""
    made = Path(start)
    for epoch, end in runs:
        made.extend(epoch, end)
    return made


def test_path_knows_the_epoch_of_each_record():
    log = path((1, 4), (3, 6))
    assert [log.epoch_at(offset) for offset in range(6)] == [1, 1, 1, 1, 3, 3]
    assert log.holds(3, 1)
    assert not log.holds(4, 1)
    assert not log.holds(6, 3), "it ends there"


def test_records_deleted_below_the_log_start_count_as_held():
    log = path((1, 4), (3, 6))
    log.start = 5
    assert log.holds(2, 99)
    assert log.holds_all_of(path((2, 3)))


def test_a_path_that_follows_one_without_its_first_records_keeps_them():
    """The leader has deleted records that another replica still has."""
    committed, leader = path((1, 4), (2, 6)), path(start=4)
    leader.extend(2, 6)
    leader.extend(3, 9)
    committed.follow(leader, 8)
    assert list(committed.segments(0, 9)) == [(1, 0, 4), (2, 4, 6), (3, 6, 8)]
    later = path(start=5)
    later.extend(2, 6)
    later.extend(3, 10)
    committed.follow(later, 10)
    assert list(committed.segments(0, 10)) == [(1, 0, 4), (2, 4, 6), (3, 6, 10)]
    committed.follow(path(start=10), 10)
    assert list(committed.segments(0, 10)) == [(1, 0, 4), (2, 4, 6), (3, 6, 10)], "the leader has no record at all"


def test_a_path_becomes_the_other_one_where_both_have_records():
    committed = path((1, 4), (2, 6))
    committed.follow(path((1, 5), (3, 7)), 7)
    assert list(committed.segments(0, 7)) == [(1, 0, 5), (3, 5, 7)]


def test_two_paths_part_where_the_first_record_differs():
    assert path((1, 7)).agrees_until(path((1, 4), (2, 6))) == 4
    assert path((1, 4), (2, 6)).agrees_until(path((1, 7))) == 4
    assert path((1, 4), (2, 6)).agrees_until(path((1, 4), (3, 9))) == 4
    assert path((1, 4)).agrees_until(path((1, 4), (3, 9))) == 4, "the shorter one ends"
    assert path((2, 5)).agrees_until(path((1, 5))) == 0


def test_truncated_path_has_no_empty_epoch():
    log = path((1, 4), (3, 6), (4, 9))
    log.truncate(4)
    assert (log.epochs, log.end) == ([1], 4)
    log.extend(5, 6)
    assert list(log.segments(0, 6)) == [(1, 0, 4), (5, 4, 6)]


def test_paths_agree_up_to_their_last_common_batch():
    """They are compared with the plain definition: record by record."""
    random = Random(7)
    for _ in range(300):
        logs = [_random_log(random)]
        for _ in range(3):  # each later leader continues some earlier log
            base = random.choice(logs)
            cut = random.randint(0, len(base))
            logs.append(base[:cut] + [len(logs) + 10] * random.randint(0, 5))
        for one in logs:
            for other in logs:
                ours, theirs = _as_path(one), _as_path(other)
                same = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
                assert ours.agrees_until(theirs) == same, (one, other)
                assert ours.holds_all_of(theirs) == (same == len(other))


def _random_log(random: Random) -> list[int]:
    return sorted(random.randint(0, 3) for _ in range(random.randint(0, 8)))


def _as_path(epochs: list[int]) -> Path:
    return path(*((epoch, offset + 1) for offset, epoch in enumerate(epochs)))


def test_tree_rejects_a_gap_within_an_epoch():
    tree = Tree()
    assert not tree.enter(1, _batch(0, 2), NOTHING)
    assert not tree.enter(1, _batch(2, 3), 1)
    assert "its next batch cannot begin at 5" in tree.enter(1, _batch(5, 6), 1)
    assert tree.find(1, 2) == _batch(2, 3)
    assert tree.find_bytes(2, 3) == 1


def test_walk_yields_the_batches_of_a_path():
    tree = Tree()
    for base in (0, 2, 4):
        tree.enter(1, _batch(base, base + 2), 1 if base else NOTHING)
    tree.enter(2, _batch(4, 7), 1)
    walked = [(epoch, batch.base) for epoch, batch in tree.walk(path((1, 4), (2, 7)), 0, 7)]
    assert walked == [(1, 0), (1, 2), (2, 4)]
    assert [batch.base for _, batch in tree.walk(path((1, 4), (2, 7)), 2, 4)] == [2]


def _batch(base: int, next_offset: int) -> Batch:
    return Batch(base, next_offset, next_offset, 70, -1, -1, -1, False)
