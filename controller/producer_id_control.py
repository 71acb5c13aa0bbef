"""Producer ids: brokers get them in blocks, so that one record in the log serves a thousand producers; a producer with a name
gets its own.

A name is for work that may be restarted, or be done twice at the same time, by processes that know nothing of each other:

    the name is new              a new number, the requested work epoch, epoch 0
    the same work epoch again    the same id, the next epoch: the first batch with it fences the epoch before
    a higher work epoch          another id, epoch 0
    a lower work epoch           PRODUCER_FENCED: this work is done, and a later work epoch has started

The first attempt of a work epoch may leave a note for the later ones. And an attempt may request that its epoch becomes the
oldest: then every partition rejects older epochs, even if this attempt does not write there.

A name that has not been requested for `producer.name.expiration.ms` is removed, and its number is not used again.
"""

from __future__ import annotations

from itertools import islice

import msgspec

from strandline.controller.decision import Decision
from strandline.controller.metadata.image import MetadataImage, ProducerName
from strandline.controller.metadata.records import (
    AnyRecord,
    ProducerIdsRecord,
    ProducerNameRecord,
    RemoveProducerNameRecord,
)
from strandline.controller.replication_control import check_broker_epoch
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.cluster import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    InitNamedProducerRequest,
    InitNamedProducerResponse,
)
from strandline.protocol.producer_names import FIRST_NAMED, NUMBER_MAX

BLOCK_SIZE = 1000
PRODUCER_ID_MAX = FIRST_NAMED - 1
"""The largest id of a producer without a name."""
PRODUCER_EPOCH_MAX = 2**15 - 1
REMOVALS_MAX = 1000
"""The most names that one decision removes."""


def allocate_producer_ids(image: MetadataImage, request: AllocateProducerIdsRequest) -> Decision[AllocateProducerIdsResponse]:
    """Give the broker a block of ids, [start, start + 1000). It has them once the record is committed. Ids that it does not use
    are never used. Raises BrokerError STALE_BROKER_EPOCH, and UNKNOWN_SERVER_ERROR if no id is left."""
    check_broker_epoch(image, request.broker_id, request.broker_epoch)
    start = image.next_producer_id
    if start > PRODUCER_ID_MAX - BLOCK_SIZE:
        raise BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR, "there are no producer ids left")
    record = ProducerIdsRecord(request.broker_id, request.broker_epoch, start + BLOCK_SIZE)
    return Decision(AllocateProducerIdsResponse(0, start, BLOCK_SIZE), [record])


def init_named_producer(
    image: MetadataImage, request: InitNamedProducerRequest, now_ms: int
) -> Decision[InitNamedProducerResponse]:
    """Give a named producer an id and its next epoch or, if the request has an epoch, make that epoch the oldest one. Both hold
    once the record is committed. A repeated request without an epoch costs one epoch.

    Raises BrokerError PRODUCER_FENCED if the work epoch is over or the name was removed, STALE_BROKER_EPOCH, UNKNOWN_SERVER_ERROR
    if no number for a new name is left, and INVALID_REQUEST."""
    check_broker_epoch(image, request.broker_id, request.broker_epoch)
    if not request.name:
        raise BrokerError(ErrorCode.INVALID_REQUEST, "the name of a producer must not be empty")
    is_new = request.producer_epoch < 0
    chosen = _next_holder(image, request, now_ms) if is_new else _without_older(image, request, now_ms)
    record = ProducerNameRecord(request.name, **msgspec.structs.asdict(chosen))
    epoch = chosen.producer_epoch if is_new else request.producer_epoch
    return Decision(InitNamedProducerResponse(0, chosen.producer_id, epoch, note=chosen.note), [record])


def _next_holder(image: MetadataImage, request: InitNamedProducerRequest, now_ms: int) -> ProducerName:
    name, work_epoch, note = request.name, request.work_epoch, request.note
    known = image.producer_names.get(name)
    if known is None:
        if image.next_producer_number > NUMBER_MAX:
            raise BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR, "there are no numbers left for producer names")
        return ProducerName(image.next_producer_number, work_epoch, 0, now_ms, note)
    if work_epoch > known.work_epoch:
        return ProducerName(known.number, work_epoch, 0, now_ms, note)
    _check_not_over(known, request)
    if known.producer_epoch >= PRODUCER_EPOCH_MAX:
        text = f"producer {name!r}: work epoch {work_epoch} was started {PRODUCER_EPOCH_MAX + 1} times; start a higher one"
        raise BrokerError(ErrorCode.INVALID_REQUEST, text)
    return ProducerName(known.number, work_epoch, known.producer_epoch + 1, now_ms, known.note, known.oldest_epoch)


def _without_older(image: MetadataImage, request: InitNamedProducerRequest, now_ms: int) -> ProducerName:
    """Make the requested epoch the oldest one. If a newer epoch has started before the request arrives, it stays the current
    one."""
    known = image.producer_names.get(request.name)
    if known is None:
        raise BrokerError(
            ErrorCode.PRODUCER_FENCED,
            f"producer {request.name!r}: the name was removed, because it was not used for producer.name.expiration.ms",
        )
    _check_not_over(known, request)
    if (request.work_epoch, request.producer_epoch) > (known.work_epoch, known.producer_epoch):
        text = f"producer {request.name!r}: epoch {request.producer_epoch} of work epoch {request.work_epoch} has not started"
        raise BrokerError(ErrorCode.INVALID_REQUEST, text)
    oldest = max(known.oldest_epoch, request.producer_epoch)
    alone: ProducerName = msgspec.structs.replace(known, last_used_ms=now_ms, oldest_epoch=oldest)
    return alone


def _check_not_over(known: ProducerName, request: InitNamedProducerRequest) -> None:
    if request.work_epoch < known.work_epoch:
        text = f"work epoch {request.work_epoch} is over, because work epoch {known.work_epoch} has started"
        raise BrokerError(ErrorCode.PRODUCER_FENCED, f"producer {request.name!r}: {text}")


def remove_unused_names(image: MetadataImage, now_ms: int, expiration_ms: int) -> Decision[int]:
    """Remove up to `REMOVALS_MAX` names that were not requested for `expiration_ms`. The reply is how many."""
    unused = (name for name, known in image.producer_names.items() if now_ms - known.last_used_ms > expiration_ms)
    records: list[AnyRecord] = [RemoveProducerNameRecord(name) for name in islice(unused, REMOVALS_MAX)]
    return Decision(len(records), records)
