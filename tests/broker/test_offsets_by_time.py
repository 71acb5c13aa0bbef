"""ListOffsets by timestamp inside compressed batches: a thread decodes them, the loop answers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from handled_request import HandledRequest
from replica_world import NOW_MS, P, ReplicaWorld, code

from strandline.broker.fetch import offsets_handler
from strandline.protocol.apis import LIST_OFFSETS
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.data import MAX_TIMESTAMP, ListOffsetsPartition, ListOffsetsRequest
from strandline.protocol.records.builder import encode_batch
from strandline.protocol.records.compression import Codec
from strandline.storage.log.batch_search import BatchSearches, SlowSearch


class HeldThread:
    """Runs blocking work when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Callable[[], None], Callable[[], None]]] = []
        self.count = 0

    def __call__(self, work: Callable[[], None], then: Callable[[], None]) -> None:
        self.waiting.append((work, then))

    def finish(self) -> None:
        while self.waiting:
            work, then = self.waiting.pop(0)
            self.count += 1
            work()
            then()


def batch(codec: Codec, *times: int) -> bytearray:
    return bytearray(encode_batch([(b"key", b"value", [], NOW_MS + time) for time in times], codec=codec))


def world_with(thread: HeldThread, *batches: bytearray, replicas: tuple[int, ...] = (1,)) -> ReplicaWorld:
    world = ReplicaWorld(run_blocking=thread)
    world.topic(replicas=replicas)
    for raw in batches:
        world[1].produce(raw, acks=1)
        thread.finish()
    thread.count = 0
    return world


def ask(world: ReplicaWorld, timestamp: int, epoch: int = -1) -> HandledRequest:
    request = HandledRequest(ListOffsetsRequest(-1, 0, [ListOffsetsPartition(*P, epoch, timestamp)]))
    world[1].handlers[LIST_OFFSETS](request)  # type: ignore[arg-type]
    return request


def found(request: HandledRequest) -> tuple[int, int]:
    answer = request.answer.partitions[0]
    assert answer.error_code == ErrorCode.NONE
    return answer.timestamp, answer.offset


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec])
def test_a_thread_decodes_a_compressed_batch(codec: Codec) -> None:
    thread = HeldThread()
    world = world_with(thread, batch(codec, 0, 10, 20), batch(codec, 30, 50, 40))
    for timestamp, expected in ((15, (20, 2)), (31, (50, 4)), (0, (0, 0))):
        request = ask(world, NOW_MS + timestamp)
        assert request.connection.held
        assert not request.is_answered
        thread.finish()
        assert found(request) == (NOW_MS + expected[0], expected[1])
        assert not request.connection.held
    request = ask(world, MAX_TIMESTAMP)
    thread.finish()
    assert found(request) == (NOW_MS + 50, 4)


def test_a_plain_batch_needs_no_thread() -> None:
    thread = HeldThread()
    world = world_with(thread, batch(Codec.NONE, 0, 10, 20))
    assert found(ask(world, NOW_MS + 15)) == (NOW_MS + 20, 2)
    assert not thread.count


def test_the_search_goes_on_behind_a_batch_without_such_a_record() -> None:
    """The newest timestamp of the first batch is that of a deleted record, which the header does not show."""
    thread = HeldThread()
    world = world_with(thread, batch(Codec.GZIP, 90, 1, 2), batch(Codec.GZIP, 60, 70))
    log = world[1].p.log
    log.increment_log_start_offset(1)
    request = ask(world, NOW_MS + 50)
    thread.finish()
    assert found(request) == (NOW_MS + 60, 3)
    assert thread.count == 2
    request = ask(world, MAX_TIMESTAMP)
    thread.finish()
    assert found(request) == (NOW_MS + 70, 4)


def test_the_answer_is_that_of_the_present_role() -> None:
    thread = HeldThread()
    world = world_with(thread, batch(Codec.ZSTD, 0, 10), replicas=(1, 2))
    world.replicate(2, 1)
    world.replicate(2, 1)
    request = ask(world, NOW_MS + 5)
    world.elect(2)
    thread.finish()
    assert code(request) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert not request.connection.held


def test_request_with_many_partitions_keeps_few_batches_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small request can name a thousand partitions with a compressed batch of 1 MiB each."""
    monkeypatch.setattr(offsets_handler, "SEARCH_BYTES_MAX", 1)
    thread = HeldThread()
    world = world_with(thread, batch(Codec.ZSTD, 0, 10))
    others = [(bytes([n]) * 16, 0) for n in range(1, 5)]
    for n, key in enumerate(others):
        world.topic(replicas=(1,), topic_id=key[0], name=f"other-{n}")
        world[1].produce(batch(Codec.ZSTD, 0, 10 + n), acks=1, key=key)
        thread.finish()
    thread.count = 0
    asked = [ListOffsetsPartition(*key, -1, NOW_MS + 5) for key in (P, *others)]
    request = HandledRequest(ListOffsetsRequest(-1, 0, asked))
    world[1].handlers[LIST_OFFSETS](request)  # type: ignore[arg-type]
    thread.finish()
    assert [(p.error_code, p.timestamp - NOW_MS, p.offset) for p in request.answer.partitions] == [
        (ErrorCode.NONE, time, 1) for time in (10, 10, 11, 12, 13)
    ]
    assert thread.count == len(asked), "one batch at a time"


def test_a_request_whose_connection_closed_meanwhile_is_not_answered() -> None:
    thread = HeldThread()
    world = world_with(thread, batch(Codec.ZSTD, 0, 10))
    request = ask(world, NOW_MS + 5)
    request.connection.close()
    thread.finish()
    assert not request.is_answered
    assert not request.connection.held


def test_a_search_that_fails_raises_its_error_in_the_lookup() -> None:
    """Otherwise the lookup would start the same search again and again."""
    thread = HeldThread()
    log = world_with(thread, batch(Codec.LZ4, 0, 10))[1].p.log
    searches = BatchSearches()
    with pytest.raises(SlowSearch) as slow:
        log.offset_for_timestamp(NOW_MS + 5, searches)
    slow.value._data = b"damaged"
    slow.value.run()
    with pytest.raises(BrokerError):
        log.offset_for_timestamp(NOW_MS + 5, searches)
