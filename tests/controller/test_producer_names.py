"""Producer names: the controller's decisions, their records in the log, and when a name is removed."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from controller_world import ControllerWorld
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.controller.metadata.image import MetadataImage, ProducerName
from strandline.controller.metadata.records import (
    ProducerNameRecord,
    ProducerNumbersRecord,
    RemoveProducerNameRecord,
    decode_record,
)
from strandline.controller.name_expiry import GO_ON_S, NameExpiry
from strandline.controller.producer_id_control import (
    PRODUCER_EPOCH_MAX,
    PRODUCER_ID_MAX,
    REMOVALS_MAX,
    allocate_producer_ids,
    init_named_producer,
    remove_unused_names,
)
from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode, InternalError
from strandline.protocol.messages.cluster import AllocateProducerIdsRequest, InitNamedProducerRequest
from strandline.protocol.producer_names import FIRST_NAMED, NUMBER_MAX, WORK_EPOCH_MAX, named_producer_id, number_of
from strandline.protocol.records.fence import FIRST_FENCE

DAY_MS = 24 * 3600 * 1000


def init(world: ControllerWorld, name: str, work_epoch: int = 0) -> tuple[int, int]:
    """Start an attempt of the producer; returns (producer id, epoch)."""
    answer = world.call(apis.INIT_NAMED_PRODUCER, InitNamedProducerRequest(1, world.epoch(1), name, work_epoch))
    return answer.producer_id, answer.producer_epoch


def refusal(world: ControllerWorld, name: str, work_epoch: int = 0, *, broker_epoch: int | None = None) -> BrokerError:
    epoch = world.epoch(1) if broker_epoch is None else broker_epoch
    with pytest.raises(BrokerError) as caught:
        world.call(apis.INIT_NAMED_PRODUCER, InitNamedProducerRequest(1, epoch, name, work_epoch))
    return caught.value


def image_with(**fields: Any) -> MetadataImage:
    world = ControllerWorld(brokers=1)
    return msgspec.structs.replace(world.image, **fields)


# -- the decision -----------------------------------------------------------------------------------------------------


def test_the_same_work_epoch_gets_the_next_producer_epoch() -> None:
    world = ControllerWorld(brokers=1)
    assert init(world, "sink", 4) == (named_producer_id(0, 4), 0)
    assert init(world, "sink", 4) == (named_producer_id(0, 4), 1)
    assert init(world, "other", 4) == (named_producer_id(1, 4), 0)
    assert init(world, "sink", 9) == (named_producer_id(0, 9), 0)
    assert init(world, "sink", 9) == (named_producer_id(0, 9), 1)
    fenced = refusal(world, "sink", 4)
    assert (fenced.code, fenced.retriable) == (ErrorCode.PRODUCER_FENCED, False)
    assert "work epoch 4 is over, because work epoch 9 has started" in str(fenced)
    assert world.replayed() == world.image


def test_every_attempt_gets_the_note_of_the_first() -> None:
    """A later attempt learns from the note where the first one started, not where it started itself; also from a snapshot."""
    world = ControllerWorld(brokers=1)

    def note(work_epoch: int, own: bytes | None) -> bytes | None:
        request = InitNamedProducerRequest(1, world.epoch(1), "sink", work_epoch, own)
        answer = world.call(apis.INIT_NAMED_PRODUCER, request).note
        assert answer is None or isinstance(answer, bytes)
        return answer

    assert [note(1, b"first"), note(1, b"second"), note(1, None)] == [b"first"] * 3
    assert [note(2, None), note(2, b"too late")] == [None, None]
    assert note(3, b"again") == b"again"
    assert world.replayed() == world.image
    records = [record for record in world.image.to_records() if isinstance(record, ProducerNameRecord)]
    assert [(record.note, record.oldest_epoch) for record in records] == [(b"again", 0)]


def test_an_attempt_can_make_its_epoch_the_oldest() -> None:
    """The request starts no epoch: otherwise a late copy of it would fence the producer that uses the name by then."""
    world = ControllerWorld(brokers=1)

    def alone(work_epoch: int, epoch: int) -> tuple[int, int]:
        request = InitNamedProducerRequest(1, world.epoch(1), "sink", work_epoch, producer_epoch=epoch)
        answer = world.call(apis.INIT_NAMED_PRODUCER, request)
        return answer.producer_id, answer.producer_epoch

    for _ in range(3):
        producer_id, _ = init(world, "sink", 4)
    assert world.image.oldest_of(producer_id) == (4, 0)
    assert alone(4, 1) == (producer_id, 1)
    assert world.image.oldest_of(producer_id) == (4, 1)
    alone(4, 2)
    alone(4, 1)
    assert world.image.oldest_of(producer_id) == (4, 2)
    assert init(world, "sink", 4) == (producer_id, 3)
    assert world.image.oldest_of(producer_id) == (4, 2)
    assert world.replayed() == world.image
    init(world, "sink", 5)
    assert world.image.oldest_of(producer_id) == (5, 0)


@pytest.mark.parametrize(
    ("name", "work_epoch", "epoch", "code"),
    [
        ("sink", 3, 0, ErrorCode.PRODUCER_FENCED),
        ("sink", 4, 1, ErrorCode.INVALID_REQUEST),
        ("sink", 5, 0, ErrorCode.INVALID_REQUEST),
        ("forgotten", 0, 0, ErrorCode.PRODUCER_FENCED),
    ],
)
def test_only_a_started_epoch_can_become_the_oldest(name: str, work_epoch: int, epoch: int, code: ErrorCode) -> None:
    world = ControllerWorld(brokers=1)
    init(world, "sink", 4)
    request = InitNamedProducerRequest(1, world.epoch(1), name, work_epoch, producer_epoch=epoch)
    with pytest.raises(BrokerError) as caught:
        world.call(apis.INIT_NAMED_PRODUCER, request)
    assert caught.value.code == code


def test_a_reply_waits_for_the_commit_but_the_next_decision_does_not() -> None:
    """Two attempts that request an id at the same moment get two epochs."""
    world = ControllerWorld(brokers=1)
    requests = [world.send(apis.INIT_NAMED_PRODUCER, InitNamedProducerRequest(1, world.epoch(1), "sink", 0)) for _ in range(2)]
    assert [request.answers for request in requests] == [[], []]
    world.commit()
    assert [request.answers[0].producer_epoch for request in requests] == [0, 1]


def test_a_controller_that_takes_over_goes_on_with_what_was_committed() -> None:
    world = ControllerWorld(brokers=1)
    init(world, "sink", 2)
    world.controller.on_resign(1)
    world.become_active(2)
    assert init(world, "sink", 2) == (named_producer_id(0, 2), 1)


def test_an_epoch_is_never_given_twice() -> None:
    """32767 is the last one, and the error names it."""
    known = ProducerName(5, 3, PRODUCER_EPOCH_MAX - 1, 0)
    world = ControllerWorld(brokers=1)
    world.controller.image = image_with(producer_names=MetadataImage.EMPTY.producer_names.updated({"sink": known}))
    request = InitNamedProducerRequest(1, world.epoch(1), "sink", 3)
    last = init_named_producer(world.image, request, 0)
    assert last.reply.producer_epoch == PRODUCER_EPOCH_MAX
    image = world.image.apply(last.records, world.image.offset + 1, 1).image
    with pytest.raises(BrokerError, match="was started 32768 times; start a higher one") as caught:
        init_named_producer(image, request, 0)
    assert not caught.value.retriable
    request.work_epoch = 4
    assert init_named_producer(image, request, 0).reply.producer_epoch == 0


def test_the_largest_number_and_work_epoch_give_the_last_id_before_those_of_fences() -> None:
    image = image_with(next_producer_number=NUMBER_MAX)
    request = InitNamedProducerRequest(1, image.brokers[1].broker_epoch, "sink", WORK_EPOCH_MAX)
    assert init_named_producer(image, request, 0).reply.producer_id == FIRST_FENCE - 1
    with pytest.raises(BrokerError, match="no numbers left"):
        init_named_producer(image_with(next_producer_number=NUMBER_MAX + 1), request, 0)


def test_ids_without_a_name_end_below_those_with_one() -> None:
    request = AllocateProducerIdsRequest(1, image_with().brokers[1].broker_epoch)
    last = allocate_producer_ids(image_with(next_producer_id=PRODUCER_ID_MAX - 1000), request).reply
    assert last.producer_id_start + last.producer_id_len <= FIRST_NAMED
    with pytest.raises(BrokerError, match="no producer ids left"):
        allocate_producer_ids(image_with(next_producer_id=PRODUCER_ID_MAX - 999), request)


def test_an_empty_name_and_a_stale_broker_epoch_are_rejected() -> None:
    world = ControllerWorld(brokers=1)
    assert refusal(world, "").code == ErrorCode.INVALID_REQUEST
    assert refusal(world, "sink", broker_epoch=world.epoch(1) + 1).code == ErrorCode.STALE_BROKER_EPOCH
    assert not world.image.producer_names


# -- how long a name is known -----------------------------------------------------------------------------------------


def test_an_unused_name_is_removed_and_its_number_is_not_reused() -> None:
    world = ControllerWorld(brokers=1)
    first, _ = init(world, "old")
    world.now += DAY_MS / 1000
    second, _ = init(world, "new")
    image = world.image
    assert remove_unused_names(image, world.wall_clock_ms(), DAY_MS).records == []
    decision = remove_unused_names(image, world.wall_clock_ms() + 1, DAY_MS)
    assert (decision.reply, decision.records) == (1, [RemoveProducerNameRecord("old")])
    image = image.apply(decision.records, image.offset + 1, 1).image
    assert list(image.producer_names) == ["new"]
    assert [image.knows_producer(number_of(pid)) for pid in (first, second)] == [False, True]
    request = InitNamedProducerRequest(1, image.brokers[1].broker_epoch, "old", 0)
    assert init_named_producer(image, request, 0).reply.producer_id == named_producer_id(2, 0)


def test_using_a_name_keeps_it() -> None:
    world = ControllerWorld(brokers=1)
    init(world, "sink")
    world.now += DAY_MS / 1000
    init(world, "sink")
    assert remove_unused_names(world.image, world.wall_clock_ms() + DAY_MS, DAY_MS).records == []


def test_an_older_image_does_not_deny_a_name() -> None:
    """A broker that lags behind must not drop the records of a producer whose name it does not know yet."""
    world = ControllerWorld(brokers=1)
    before = world.image
    init(world, "sink")
    assert before.knows_producer(0)
    assert not world.image.apply([RemoveProducerNameRecord("sink")], world.image.offset + 1, 1).image.knows_producer(0)


def test_a_record_that_removes_a_name_twice_contradicts_the_image() -> None:
    with pytest.raises(InternalError, match="'sink', which does not exist"):
        MetadataImage.EMPTY.apply([RemoveProducerNameRecord("sink")], 0, 1)


async def test_the_active_controller_removes_names_in_batches() -> None:
    world = ControllerWorld(brokers=1)
    names = {f"n{i}": ProducerName(i, 0, 0, 0) for i in range(REMOVALS_MAX + 1)}
    records = [ProducerNameRecord(name, p.number, 0, 0, 0) for name, p in names.items()]
    world.controller.image = world.controller.image.apply(records, world.image.offset, 1).image
    expiry = NameExpiry(world.controller, wall_clock_ms=world.wall_clock_ms, expiration_ms=1)
    expiry.on_active()
    async with asyncio.timeout(20 * GO_ON_S + 5):
        while world.image.producer_names:
            await asyncio.sleep(GO_ON_S / 10)
            world.commit()
    removals = [
        sum(isinstance(decode_record(data), RemoveProducerNameRecord) for _, data in world.quorum.log[base : last + 1])
        for base, last in world.quorum.batches
    ]
    assert [count for count in removals if count] == [REMOVALS_MAX, 1]
    expiry.on_inactive()
    assert expiry._timer is None


# -- the image --------------------------------------------------------------------------------------------------------

Step = tuple[str, str, int]
histories = st.lists(
    st.tuples(st.sampled_from(["init", "init", "remove"]), st.sampled_from("abc"), st.integers(0, 3)), max_size=30
)


@settings(max_examples=200, deadline=None)
@given(histories, st.integers(0, 30), st.booleans())
def test_a_snapshot_at_any_offset_and_the_rest_give_the_same_image(history: list[Step], cut: int, at_once: bool) -> None:
    """I19: each number is used once, whatever is removed; and the two tables agree."""
    image, given_numbers = image_with(), []
    broker_epoch, offset = image.brokers[1].broker_epoch, image.offset
    log: list[Any] = []
    for kind, name, work_epoch in history:
        known = image.producer_names.get(name)
        if kind == "remove":
            records: list[Any] = [RemoveProducerNameRecord(name)] if known is not None else []
        elif known is not None and work_epoch < known.work_epoch:
            continue
        else:
            decision = init_named_producer(image, InitNamedProducerRequest(1, broker_epoch, name, work_epoch), len(log))
            records = list(decision.records)
            if known is None:
                given_numbers.append(number_of(decision.reply.producer_id))
        log += records
        image = image.apply(records, offset + len(log), 1).image
        assert {p.number: n for n, p in image.producer_names.items()} == dict(image.producer_numbers)
    assert given_numbers == sorted(set(given_numbers))
    start = image_with()
    middle = start.apply(log[:cut], offset + len(log[:cut]), 1).image
    loaded = MetadataImage.from_records(middle.to_records(), middle.offset, middle.epoch)
    assert loaded == middle
    for piece in [log[cut:]] if at_once else [[record] for record in log[cut:]]:
        loaded = loaded.apply(piece, offset + len(log), 1).image
    fields = ("producer_names", "producer_numbers", "next_producer_number")
    assert [getattr(loaded, field) for field in fields] == [getattr(image, field) for field in fields]


def test_a_snapshot_has_the_numbers_of_removed_names() -> None:
    image = MetadataImage.EMPTY.apply([ProducerNameRecord("sink", 6, 0, 0, 0), RemoveProducerNameRecord("sink")], 1, 1).image
    assert list(image.to_records()) == [ProducerNumbersRecord(7)]
