"""No last value is missing after an unclean election: a follower whose cleaner has removed values because of records that the new
leader does not have copies the log again.

The logs are cleaned by the cleaner's own core; the fetcher, the logs and the leader's handlers are the production code.
"""

from __future__ import annotations

import pytest
from cleaner_kit import clean, keyed, rows
from fetcher_link import Link
from replica_world import NOW_MS, Node, ReplicaWorld, code

from strandline.protocol.errors import ErrorCode
from strandline.storage.memory.memory_files import MemoryFiles

KEY = b"k37"


class Death(BaseException):
    """The process is killed in the middle of an operation."""


def put(node: Node, *records: tuple[bytes, bytes | None]) -> None:
    """Append each record as a batch of its own, commit it, and close the segment."""
    for record in records:
        assert code(node.produce(keyed([record]), acks=1)) == ErrorCode.NONE
    node.p.log.update_high_watermark(node.leo)
    node.p.log.roll(NOW_MS)


def clean_at(node: Node) -> None:
    log = node.p.log
    log.first_dirty_offset = clean(log, save=node.log_dir.save_cleaner_offsets).next_dirty


def keys(node: Node) -> dict[bytes | None, bytes | None]:
    """The last value of each key, as an application reads it from this replica."""
    return {key: value for _, key, value in rows(node.p.log)}


def restarts(node: Node) -> int:
    return node.manager.metrics.restarted_for_values


def led_by_1_alone() -> ReplicaWorld:
    """Both brokers have a value; broker 1 alone has a newer one, which is committed, because the ISR is {1}."""
    world = ReplicaWorld(2)
    world.topic(replicas=(1, 2), isr=(1,), segment_bytes="100")
    put(world[1], (KEY, b"old"), (b"other", b"1"))
    Link(world, 2, 1).settle()
    put(world[1], (KEY, b"new"), (b"more", b"1"))
    return world


def elect_2_uncleanly(world: ReplicaWorld) -> None:
    world.elect(2, isr=(2,))
    put(world[2], (b"other", b"2"))


def test_follower_whose_superseding_record_was_cut_starts_over() -> None:
    world = led_by_1_alone()
    clean_at(world[1])
    assert (1, b"other", b"1") in rows(world[1].p.log)
    assert world[1].p.log.superseded_below == 4
    elect_2_uncleanly(world)
    Link(world, 1, 2).settle()
    assert keys(world[1]) == keys(world[2]) == {KEY: b"old", b"other": b"2"}
    assert (restarts(world[1]), world[1].p.log.superseded_below) == (1, 0)


def test_bound_outlives_the_process_that_dies_between_the_cut_and_the_new_copy() -> None:
    world = led_by_1_alone()
    clean_at(world[1])
    elect_2_uncleanly(world)
    link = Link(world, 1, 2)
    link.round()
    assert (world[1].leo, restarts(world[1])) == (2, 0), "its log is cut, and nothing else"
    restart(world, 1)
    Link(world, 1, 2).settle()
    assert keys(world[1]) == keys(world[2])
    assert restarts(world[1]) == 1


@pytest.mark.parametrize("operations", range(7))
def test_process_that_dies_while_it_drops_its_log_starts_over_again(operations: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log's first segments go last: the end of a log, without its beginning, would look like a log whose oldest records were
    deleted, and a log start does not move back."""
    world = led_by_1_alone()
    clean_at(world[1])
    elect_2_uncleanly(world)
    link = Link(world, 1, 2)
    link.round()
    left = operations
    remove = MemoryFiles.remove

    def dies(files: MemoryFiles, path: str) -> None:
        nonlocal left
        if not left:
            raise Death
        left -= 1
        remove(files, path)

    with monkeypatch.context() as patch:
        patch.setattr(MemoryFiles, "remove", dies)
        with pytest.raises(Death):
            link.round()
    restart(world, 1)
    Link(world, 1, 2).settle()
    assert world[1].p.log.log_start_offset == 0
    assert keys(world[1]) == keys(world[2])


def test_follower_is_in_no_isr_before_it_has_copied_the_log_again() -> None:
    """Its log ends where the leader's does after the cut. If it joined the ISR with its next fetch, it could not start over."""
    world = led_by_1_alone()
    clean_at(world[1])
    world.elect(2, isr=(2,))
    link = Link(world, 1, 2)
    link.round()
    assert world[1].leo == world[2].leo == 2
    link.round()
    assert not world[2].alter.pending
    link.settle()
    assert [broker_id for broker_id, _ in world[2].alter.take().isr] == [2, 1]
    assert keys(world[1]) == keys(world[2]) == {KEY: b"old", b"other": b"1"}


def test_follower_that_keeps_what_its_cleaner_judged_by_keeps_its_log() -> None:
    world = led_by_1_alone()
    Link(world, 2, 1).settle()
    put(world[1], (KEY, b"newest"))
    world[1].p.log.superseded_below = 4
    elect_2_uncleanly(world)
    Link(world, 1, 2).settle()
    assert keys(world[1]) == keys(world[2])
    assert restarts(world[1]) == 0


def test_member_of_the_isr_keeps_its_records() -> None:
    """If its disk has lost records that its cleaner has judged by, others have them, and it copies them as any follower does."""
    world = led_by_1_alone()
    Link(world, 2, 1).settle()
    world.set_isr(1, 2)
    world[2].p.log.truncate_to(2)
    world[2].p.log.superseded_below = 3
    Link(world, 2, 1).settle()
    assert keys(world[2]) == keys(world[1])
    assert restarts(world[2]) == 0


def test_leader_decides_what_the_history_is() -> None:
    """It has lost what its cleaner has judged by, and no other replica has more: its log is the history from now on."""
    world = led_by_1_alone()
    clean_at(world[1])
    world.elect(2, isr=(2,))
    Link(world, 1, 2).round()
    world.elect(1, isr=(1,))
    assert world[1].p.log.superseded_below == 2


def restart(world: ReplicaWorld, broker_id: int) -> None:
    """Kill the broker's process, and start another one on the same disk."""
    files = world[broker_id].files
    files.crash(lossy=False)
    world.add_node(broker_id, files)
    world.catch_up(broker_id)
