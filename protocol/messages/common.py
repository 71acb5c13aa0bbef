"""The base class of messages, bounded types, and the rule for record batches.

A message is a msgspec Struct that is encoded as a msgpack array; the typed classes are the schema. New fields are appended with
defaults, and a decoder ignores fields that a newer peer appended. A message with record batches has them in its **last** field,
`records`, one entry per partition of the message in the same order. So a frame is one packed head, followed by the bytes of the
batches (`protocol/frames.py`).
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from strandline.protocol.producer_names import NAME_LENGTH_MAX, NOTE_BYTES_MAX


class Message(msgspec.Struct, array_like=True, gc=False):
    """Base class of every message and of every part of a message."""

    def version(self) -> int:
        """The lowest API version in which this request has its meaning: 0, unless a field needs a later one."""
        return 0


Int8 = Annotated[int, Meta(ge=-(2**7), le=2**7 - 1)]
Int16 = Annotated[int, Meta(ge=-(2**15), le=2**15 - 1)]
Int32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
"""A size, a count or a duration in ms; never negative."""
PartitionIndex = Annotated[int, Meta(ge=0, le=2**31 - 1)]
NodeId = Annotated[int, Meta(ge=-1, le=2**31 - 1)]
"""-1: none."""
Offset = Annotated[int, Meta(ge=-1, le=2**63 - 1)]
"""-1: unknown."""
Epoch = Annotated[int, Meta(ge=-1, le=2**31 - 1)]
"""A leader epoch; -1: unknown."""
BrokerEpoch = Annotated[int, Meta(ge=-1, le=2**63 - 1)]
Uuid = Annotated[bytes, Meta(min_length=16, max_length=16)]
Name = Annotated[str, Meta(max_length=1024)]
"""A bound for the decoder only. The code that uses a name checks whether it is allowed (topic names: `controller`)."""
TransactionalId = Annotated[str, Meta(max_length=32767)]
Text = Annotated[str, Meta(max_length=65536)]
ProducerName = Annotated[str, Meta(max_length=NAME_LENGTH_MAX)]
ProducerNote = Annotated[bytes, Meta(max_length=NOTE_BYTES_MAX)]
"""A note of the first process of a work epoch for later processes of the same work epoch. The cluster only stores it."""

MANY = Meta(max_length=100_000)
"""The bound for lists of partitions in requests. A longer list is refused before any item is decoded."""

ZERO_UUID = bytes(16)


class Listener(Message):
    """An address of a node. Clients get the addresses of the listener name over which they connected."""

    name: Name
    host: Name
    port: Annotated[int, Meta(ge=0, le=65535)]


class SupportedFeature(Message, frozen=True):  # type: ignore[misc]  # msgspec allows it
    """A range of levels of a feature that a node supports (KIP-584)."""

    name: Name
    min_version: Int16
    max_version: Int16


class CurrentLeader(Message, frozen=True):  # type: ignore[misc]  # msgspec allows it
    """The partition's leader as the answering replica knows it, which saves the client a Metadata request."""

    leader_id: NodeId = -1
    leader_epoch: Epoch = -1


class EpochEndOffset(Message, frozen=True):  # type: ignore[misc]  # msgspec allows it
    """A leader epoch and its exclusive end offset in the answering replica's log (KIP-101, KIP-595)."""

    epoch: Epoch = -1
    end_offset: Offset = -1


class SnapshotId(Message, frozen=True):  # type: ignore[misc]  # msgspec allows it
    """The id of a metadata snapshot, which covers all records below `end_offset`; `epoch` is the epoch of the last one."""

    end_offset: Offset = -1
    epoch: Epoch = -1
