"""S42: a bit flips on a replica's disk. Damaged bytes are never served; the replica fetches them again from its leader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from replica_world import NOW_MS, P, ReplicaWorld, batch, code, commit, log_values, values, want
from structlog.testing import capture_logs

from strandline.broker.partition.partition import Role
from strandline.controller.metadata.records import PartitionChangeRecord
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.data import MAX_TIMESTAMP
from strandline.protocol.records.batch import iter_headers
from strandline.storage.memory.memory_files import MemoryFiles

SEGMENT = "/data/orders-0/00000000000000000000.log"
COUNT = 20


def flip(files: MemoryFiles, index: int) -> None:
    """Flip one bit in the value of the record at offset `index`. All batches here have one record and the same size."""
    size = len(files.read(SEGMENT)) // COUNT
    files.flip_bit(SEGMENT, (index * size + size - 3) * 8)


@pytest.fixture
def world() -> ReplicaWorld:
    """Broker 1 leads. All replicas have twenty records, and their high watermarks are at the end."""
    world = ReplicaWorld()
    world.topic(index_interval_bytes="200")
    for index in range(COUNT):
        world[1].produce(f"value-{index:04}", acks=1)
    for _ in range(3):
        for follower in (2, 3):
            world.replicate(follower, 1)
    assert [node.hw for node in world.nodes.values()] == [COUNT] * 3
    return world


@pytest.fixture
def logged() -> Iterator[list[Any]]:
    with capture_logs() as lines:
        yield lines


def restart(world: ReplicaWorld, broker_id: int) -> None:
    """Kill the broker and start it again, after a checkpoint of its high watermarks."""
    node = world[broker_id]
    node.manager.checkpoint_high_watermarks()
    files = node.files
    files.crash(lossy=False)
    world.add_node(broker_id, files)
    world.catch_up(broker_id)


def cool_down(world: ReplicaWorld, broker_id: int) -> None:
    """Drop the recent batches from memory, so that reads go to the disk."""
    world[broker_id].p.log.tail.clear()


def events(logs: list[Any], event: str) -> list[Any]:
    return [line for line in logs if line["event"] == event]


def test_a_restarted_replica_repairs_itself_from_its_leader(world: ReplicaWorld, logged: list[Any]) -> None:
    """The controller has removed it from the ISR while it was away. Afterwards it has the same bytes as before."""
    world.set_isr(1, 3, at=(1, 3))
    flip(world[2].files, 7)
    restart(world, 2)
    replica = world[2].p
    assert (replica.log.corrupt_at, replica.log.log_end_offset) == (7, COUNT)
    assert replica.fetch_position().fetch_offset == 7
    [line] = events(logged, "partition.damaged")
    assert (line["topic"], line["partition"], line["offset"], line["high_watermark"]) == ("orders", 0, 7, COUNT)
    world.replicate(2, 1)
    assert (replica.log.corrupt_at, replica.log.log_end_offset, replica.log.high_watermark) == (None, COUNT, COUNT)
    [dropped] = events(logged, "partition.damaged_tail_dropped")
    assert (dropped["offset"], dropped["high_watermark"], dropped["records"]) == (7, COUNT, COUNT - 7)
    assert world[2].files.read(SEGMENT) == world[1].files.read(SEGMENT)
    cool_down(world, 2)
    assert log_values(replica) == log_values(world[1].p)
    world.replicate(2, 1)
    assert [item.isr[-1][0] for item in world[1].alter.submitted] == [2], "caught up again, it is proposed for the ISR"


def test_a_damaged_isr_member_leaves_the_isr_before_it_truncates(world: ReplicaWorld) -> None:
    """If it truncated to seven records while in the ISR, it could be elected, and thirteen acknowledged records would be lost."""
    flip(world[2].files, 7)
    restart(world, 2)
    replica = world[2].p
    with pytest.raises(BrokerError) as caught:
        world.replicate(2, 1)
    assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert replica.log.log_end_offset == COUNT
    proposal = world[1].alter.take()
    assert [member for member, _ in proposal.isr] == [1, 3]
    with pytest.raises(BrokerError):
        world.replicate(2, 1)
    commit(proposal)
    world.change(PartitionChangeRecord(*P, isr=(1, 3)))
    world.replicate(2, 1)
    assert world[2].files.read(SEGMENT) == world[1].files.read(SEGMENT)


def test_a_damaged_leader_serves_the_records_before_the_damage(world: ReplicaWorld, logged: list[Any]) -> None:
    """The leader returns neither the bytes nor CORRUPT_MESSAGE, which would blame the client. It logs one warning per minute,
    however often the damage is read."""
    leader = world[1]
    cool_down(world, 1)
    flip(leader.files, 7)
    assert values(leader.fetch(want(0))) == [f"value-{index:04}".encode() for index in range(7)]
    for _ in range(5):
        for ask in (leader.fetch(want(7)), leader.fetch(want(12)), leader.said_by(2, 7)):
            assert code(ask) == ErrorCode.KAFKA_STORAGE_ERROR
            assert not ask.records[0]
    assert code(leader.produce("x")) == ErrorCode.KAFKA_STORAGE_ERROR
    assert leader.list_offsets(MAX_TIMESTAMP).error_code in (0, ErrorCode.KAFKA_STORAGE_ERROR)
    assert len(events(logged, "partition.damaged_read_refused")) == 1
    world.loop.advance(61)
    leader.fetch(want(7))
    assert len(events(logged, "partition.damaged_read_refused")) == 2


def test_a_damaged_leader_that_only_producers_ask_lets_another_one_lead(world: ReplicaWorld) -> None:
    """The followers have caught up, and the consumer that read the damage has left, so no read will find it again. Without this,
    the partition would take no record until an operator restarts a broker."""
    leader, stepped_back = world[1], []
    leader.manager.failures._on_leader_damaged = lambda: stepped_back.append(1)
    leader.p.log.mark_corrupt(7)
    assert code(leader.produce("x")) == ErrorCode.KAFKA_STORAGE_ERROR
    assert stepped_back == [1]


def test_a_question_by_time_that_meets_damage_is_a_storage_error(world: ReplicaWorld) -> None:
    """All records have the same timestamp, so the search reads the first one."""
    cool_down(world, 1)
    flip(world[1].files, 0)
    assert world[1].list_offsets(NOW_MS).error_code == ErrorCode.KAFKA_STORAGE_ERROR


def test_a_damaged_leader_repairs_itself_when_another_one_leads(world: ReplicaWorld) -> None:
    cool_down(world, 1)
    flip(world[1].files, 7)
    assert code(world[1].fetch(want(7))) == ErrorCode.KAFKA_STORAGE_ERROR
    world.elect(2)
    assert world[1].p.role is Role.FOLLOWER
    world.replicate(3, 2)
    with pytest.raises(BrokerError):
        world.replicate(1, 2)
    commit(world[2].alter.take())
    world.set_isr(2, 3)
    world[2].produce("after", acks=1)
    world.replicate(1, 2)
    assert world[1].files.read(SEGMENT) == world[2].files.read(SEGMENT)
    cool_down(world, 1)
    assert log_values(world[1].p)[-1] == (COUNT, b"after")


def test_a_follower_that_reads_damage_fetches_again(world: ReplicaWorld) -> None:
    """The leader may have no new record for a long time, so the fetcher starts over at the damage, once."""
    follower = world[2]
    follower.fetchers.starts.clear()
    cool_down(world, 2)
    flip(follower.files, 7)
    for _ in range(3):
        assert code(follower.fetch(want(7), rack_id="a")) == ErrorCode.KAFKA_STORAGE_ERROR
    assert follower.fetchers.starts == [(P, 1)]
    world.set_isr(1, 3)
    world.replicate(2, 1)
    assert follower.files.read(SEGMENT) == world[1].files.read(SEGMENT)
    assert values(follower.fetch(want(7), rack_id="a"))[0] == b"value-0007"


def test_fetched_bytes_that_fail_their_checksum_are_not_appended(world: ReplicaWorld) -> None:
    """The follower fetches them again (`FetcherCore` delays the partition)."""
    leader, replica = world[1], world[2].p
    leader.produce("new", acks=1)
    position = replica.fetch_position()
    request = leader.fetch_from(world[2])
    data = bytearray(b"".join(bytes(part) for part in request.records[0]))
    data[-3] ^= 1
    with pytest.raises(BrokerError) as caught:
        replica.append_fetched(position, request.answer.partitions[0], memoryview(data))
    assert caught.value.code == ErrorCode.CORRUPT_MESSAGE
    assert replica.log.log_end_offset == COUNT
    world.replicate(2, 1)
    assert replica.log.log_end_offset == COUNT + 1


def test_an_epoch_that_diverges_below_the_damage_is_cut_there(world: ReplicaWorld) -> None:
    """The follower first truncates to the common history, which removes the damage, too."""
    follower = world[2]
    world.elect(2, isr=(2, 3), at=(2, 3))
    for index in range(3):
        follower.produce(batch(f"never-{index}"), acks=1)
    follower.p.log.mark_corrupt(COUNT + 1)
    world.elect(3, isr=(3, 1))
    world.replicate(2, 3)
    world.replicate(2, 3)
    assert (follower.p.log.corrupt_at, follower.leo) == (None, COUNT)


def with_a_fork(world: ReplicaWorld, broker_id: int) -> None:
    """Let the broker lead for a moment and append records that no follower copies; then broker 1 leads again."""
    world.elect(broker_id, at=(broker_id,))
    for index in range(3):
        world[broker_id].produce(batch(f"never-{index}"), acks=1)
    world.elect(1)
    world.elect(1)


def flip_length(files: MemoryFiles, index: int) -> None:
    """Flip a bit in the length of a batch, where an iteration over the headers finds it."""
    sizes = [header.size for _, header in iter_headers(files.read(SEGMENT))]
    files.flip_bit(SEGMENT, (sum(sizes[:index]) + 8) * 8 + 6)


def test_an_isr_member_that_truncates_keeps_records_behind_damage(world: ReplicaWorld, logged: list[Any]) -> None:
    """Its leader tells it to truncate to where their histories part, and before that offset there is damage. If it truncated at
    the damage while in the ISR, it could be elected, the third replica would truncate to follow it, and acknowledged records
    would be lost."""
    follower = world[2]
    with_a_fork(world, 2)
    assert follower.leo == COUNT + 3
    flip_length(follower.files, COUNT - 1)
    before = follower.files.read(SEGMENT)
    with pytest.raises(BrokerError, match="damaged"):
        world.replicate(2, 1)
    assert (follower.p.log.corrupt_at, follower.leo, follower.hw) == (COUNT - 1, COUNT + 3, COUNT)
    assert follower.files.read(SEGMENT) == before
    assert not events(logged, "partition.truncated")
    assert follower.p.fetch_position().fetch_offset == COUNT - 1
    with pytest.raises(BrokerError, match="until the replica has left the ISR"):
        world.replicate(2, 1)
    proposal = world[1].alter.take()
    assert [member for member, _ in proposal.isr] == [1, 3]
    commit(proposal)
    world.change(PartitionChangeRecord(*P, isr=(1, 3)))
    for _ in range(3):
        world.replicate(2, 1)
    assert (follower.p.log.corrupt_at, follower.leo, follower.hw) == (None, COUNT, COUNT)
    assert follower.files.read(SEGMENT) == world[1].files.read(SEGMENT)


def test_a_damaged_isr_member_does_not_start_over(world: ReplicaWorld) -> None:
    """The leader has deleted the damaged records, so the position is out of range. The records after the leader's start are valid
    on this replica and may be committed, so it keeps them until it has left the ISR."""
    follower = world[2]
    follower.p.log.mark_corrupt(7)
    position = follower.p.fetch_position()
    with pytest.raises(BrokerError, match="until the replica has left the ISR"):
        follower.p.truncate_fully_and_start_at(position, 10)
    assert follower.leo == COUNT
    world.set_isr(1, 3)
    follower.p.truncate_fully_and_start_at(follower.p.fetch_position(), 10)
    assert (follower.p.log.log_start_offset, follower.leo, follower.p.log.corrupt_at) == (10, 10, None)


def test_a_damaged_epoch_is_found_when_the_leader_continues_with_an_older_one(logged: list[Any]) -> None:
    """A batch's checksum does not cover its epoch. The follower takes its last record for newer than it is, and the leader knows
    that epoch, so what it sends does not fit. The follower must not refuse it for ever."""
    world = ReplicaWorld()
    world.topic()
    for index in range(15):
        world[1].produce(f"value-{index:04}", acks=1)
    for _ in range(3):
        for follower in (2, 3):
            world.replicate(follower, 1)
    for index in range(5):
        world[1].produce(f"later-{index:04}", acks=1)
    world.set_isr(1, 3, at=(1, 3))
    size = len(world[2].files.read(SEGMENT)) // 15
    world[2].files.flip_bit(SEGMENT, (14 * size + 15) * 8 + 1)  # epoch 1 becomes 3
    restart(world, 2)
    assert world[2].p.log.latest_epoch == 3
    for _ in range(2):
        world.elect(1, isr=(1, 3))
    world[1].produce("newest", acks=1)
    with pytest.raises(BrokerError, match="our log is damaged from 14 on"):
        world.replicate(2, 1)
    for _ in range(2):
        world.replicate(2, 1)
    assert log_values(world[2].p) == log_values(world[1].p)
    assert world[2].p.log.corrupt_at is None
    assert world[2].p.log.epochs.entries == [(1, 0), (3, 20)]
    assert len(events(logged, "log.damaged")) == 1
