"""What all message classes share: the base class, bounded types, and the rule for record batches.

A message is a msgspec Struct encoded as a msgpack array: plain typed classes are the schema. Fields are appended with
defaults; a decoder ignores what a newer peer appended. A message that carries record batches has them in its **last**
field, `records`, one entry per partition of the message in the same order, so that a frame is written as one packed
head and then the batches' own bytes (`protocol/frames.py`).
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from strandline.protocol.producer_names import NAME_LENGTH_MAX, NOTE_BYTES_MAX


class Message(msgspec.Struct, array_like=True, gc=False):
    """Base of every message and of every part of one."""

    def version(self) -> int:
        """The oldest version of the API that understands this request: 0, unless a field changes its meaning."""
        return 0


Int16 = Annotated[int, Meta(ge=-(2**15), le=2**15 - 1)]
Int32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
"""A size, a number of things, a duration in ms: never negative."""
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
"""A bound for the decoder only; what a name may be is decided where it is used (topics: `controller`)."""
Text = Annotated[str, Meta(max_length=65536)]
ProducerName = Annotated[str, Meta(max_length=NAME_LENGTH_MAX)]
ProducerNote = Annotated[bytes, Meta(max_length=NOTE_BYTES_MAX)]
"""What the first attempt of a work epoch leaves for the later ones; nobody else reads it."""

MANY = Meta(max_length=100_000)
"""A bound for lists of partitions in requests: more is refused before any is decoded."""

ZERO_UUID = bytes(16)


class Listener(Message):
    """Where a node can be reached: clients get the address of the listener that they came in on."""

    name: Name
    host: Name
    port: Annotated[int, Meta(ge=0, le=65535)]


class CurrentLeader(Message, frozen=True):  # type: ignore[misc]  # msgspec allows it
    """Who leads, as far as the answering replica knows: saves the asker a metadata request."""

    leader_id: NodeId = -1
    leader_epoch: Epoch = -1


class EpochEndOffset(Message, frozen=True):  # type: ignore[misc]  # msgspec allows it
    """An epoch and the exclusive end offset that the answering log has for it (KIP-101, KIP-595)."""

    epoch: Epoch = -1
    end_offset: Offset = -1


class SnapshotId(Message, frozen=True):  # type: ignore[misc]  # msgspec allows it
    """A metadata snapshot: it holds everything below `end_offset`; `epoch` is that of the last record."""

    end_offset: Offset = -1
    epoch: Epoch = -1
