"""A producer id in a partition belongs to the principal that has written there with it.

A producer needs rights on topics, and on its transactional id or name. Producer ids are no secrets: they are consecutive numbers.
So without this check a principal that may write to a topic could write as any other producer of the topic: fence it with a higher
epoch, use up its sequence numbers, or add records to its open transaction.

    named producer      needs WRITE on its name, for each batch. A producer id that no name has yet is refused: a batch with a
                        high epoch would fence the producer that gets this id later. So is one whose name was removed, for good
    other producer id   the first principal whose batch is appended to the partition owns it there; another one gets
                        INVALID_PRODUCER_ID_MAPPING. If a transactional id passes to another principal, its coordinator gives it
                        a higher epoch. The owner changes when the coordinator confirms the first batch of that epoch to the
                        leader

This guard runs after the guard of the rights. Only the leader that has appended the batches knows the owners.

**Where this is weak**: a new leader does not know the owners: the first principal that writes with a producer id owns it. An
attacker that may write to the partition can disturb its producers at this moment, as it always can in Apache Kafka."""

from __future__ import annotations

from struct import Struct
from typing import Any

from strandline.broker.security.owners import Owner, Owners
from strandline.controller.metadata.security.access import Access
from strandline.controller.metadata.security.guards.common import Handler
from strandline.controller.metadata.security.guards.data import owns_name, pass_produce
from strandline.controller.metadata.security.partial_request import PartialRequest
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.data import ProducePartitionResponse, ProduceRequest
from strandline.protocol.partitions import TopicIdPartition
from strandline.protocol.producer_names import is_named, number_of
from strandline.protocol.records.batch import HEADER_SIZE, LENGTH_PREFIX, PRODUCER_ID_POS
from strandline.protocol.security.principal import Principal

OWNERS_MAX = 100_000
_FOREIGN = ErrorCode.INVALID_PRODUCER_ID_MAPPING

ProducerInPartition = tuple[bytes, int, int]
"""Topic id, partition, and a producer id that writes there."""

_IDENTITY = Struct(">qh")
"""Producer id and producer epoch, which are adjacent in a batch's header."""
_LENGTH, _LENGTH_POS = Struct(">i"), 8


class ProducerOwners:
    """The owners of the producer ids in the partitions that a broker leads."""

    def __init__(self, limit: int = OWNERS_MAX) -> None:
        self._owners: Owners[ProducerInPartition] = Owners(limit)

    def __len__(self) -> int:
        return len(self._owners)

    def produce(self, access: Access, request: Any, handler: Handler) -> Any:
        """The guard of Produce: refuses the partitions with a foreign producer id, and has the append claim the other ids."""
        body: ProduceRequest = request.body
        refused: dict[int, ProducePartitionResponse] = {}
        claims: dict[ProducerInPartition, Owner] = {}
        owners, principal = self._owners, access.principal
        partitions = body.partitions
        for index, records in enumerate(body.records[: len(partitions)]):
            item = partitions[index]
            for producer_id, epoch in identities(records):
                key = (item.topic_id, item.partition, producer_id)
                owner = owners.get(key)
                if owner is not None and epoch <= owner.epoch and owner.principal == principal:
                    continue
                code = _refusal(access, producer_id, epoch, owner, body.transactional_id)
                if code is not None:
                    refused[index] = ProducePartitionResponse(*key[:2], code, error_message=_text(code, producer_id))
                elif not is_named(producer_id):
                    claims[key] = Owner(principal, epoch)
        if claims:
            request = OwnedProduce(request, Ownership(owners, claims, body.transactional_id is not None))
        return pass_produce(request, handler, refused)


class Ownership:
    """The producer ids that a Produce request claims.

    Another principal may claim them first, while the request waits for the transaction coordinator or for its records to be
    decompressed. So the leader checks again right before the append (`refusal`). Right after it, before the batch is replicated,
    `on_appended` makes the sender the owner."""

    def __init__(
        self, owners: Owners[ProducerInPartition], claims: dict[ProducerInPartition, Owner], is_transactional: bool
    ) -> None:
        self._owners = owners
        self._claims = claims
        self._is_transactional = is_transactional

    def refusal(self, partition: TopicIdPartition) -> BrokerError | None:
        """The error of records whose producer id another principal has claimed meanwhile; None if they may be appended."""
        for key, claimed in self._claims.items():
            owner = self._owners.get(key)
            if key[:2] == partition and owner is not None and _is_foreign(owner, *claimed, self._is_transactional):
                return BrokerError(_FOREIGN, _text(_FOREIGN, key[2]))
        return None

    def on_appended(self, partition: TopicIdPartition) -> None:
        """Record the sender as the owner of its producer ids in this partition."""
        for key, claimed in self._claims.items():
            if key[:2] == partition:
                self._owners.claim(key, *claimed)


class OwnedProduce(PartialRequest):
    """A Produce request with producer ids to claim."""

    __slots__ = ("ownership",)

    def __init__(self, request: Any, ownership: Ownership) -> None:
        super().__init__(request, request.body, lambda response: None)
        self.ownership = ownership


def identities(records: memoryview) -> list[tuple[int, int]]:
    """The producer id and epoch of each batch that has one. What follows a malformed batch may be wrong; this does no harm,
    because the append refuses the records of the partition."""
    found, position, size = [], 0, len(records)
    while position + HEADER_SIZE <= size:
        identity = _IDENTITY.unpack_from(records, position + PRODUCER_ID_POS)
        if identity[0] >= 0:
            found.append(identity)
        (length,) = _LENGTH.unpack_from(records, position + _LENGTH_POS)
        position += max(length + LENGTH_PREFIX, HEADER_SIZE)
    return found


def _refusal(access: Access, producer_id: int, epoch: int, owner: Owner | None, transactional_id: str | None) -> ErrorCode | None:
    """The error code if another principal owns the producer id, or if the id has a name that the sender may not use; None if the
    sender may write with it."""
    if is_named(producer_id):
        return _refusal_of_named(access, producer_id)
    is_foreign = owner is not None and _is_foreign(owner, access.principal, epoch, transactional_id is not None)
    return _FOREIGN if is_foreign else None


def _is_foreign(owner: Owner, principal: Principal, epoch: int, is_transactional: bool) -> bool:
    """Whether another principal owns the producer id of the batch. A transactional batch with a higher epoch is allowed here,
    because the transaction coordinator has to confirm it to the leader."""
    return owner.principal != principal and not (is_transactional and epoch > owner.epoch)


def _refusal_of_named(access: Access, producer_id: int) -> ErrorCode | None:
    number = number_of(producer_id)
    if not access.image.knows_producer(number):
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if number not in access.image.producer_numbers:
        return ErrorCode.BROKER_NOT_AVAILABLE  # retriable: the name may be in the metadata that this broker gets next
    return None if owns_name(access, producer_id) else ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def _text(code: ErrorCode, producer_id: int) -> str:
    if code is _FOREIGN and is_named(producer_id):
        return "the producer's name was removed, because it was not used for producer.name.expiration.ms; start a new producer"
    if code is ErrorCode.BROKER_NOT_AVAILABLE:
        return "this broker does not know a producer name with this producer id yet"
    if code is _FOREIGN:
        return "another principal writes to the partition with this producer id"
    return "the principal needs the right WRITE on the producer's name"
