"""The level of the metadata records, which is the feature `metadata.version` (Kafka's KIP-584 and KIP-778).

A record format changes only together with a level. The metadata log names the cluster's level in a `FeatureLevelRecord`, and the
active controller writes only records of that level (`encode_record`). The level is raised by an administrator, after every broker
and every voter has the new software; so no node ever reads a record that it does not know. The level is never lowered, because
the log may hold records of the higher one.

    level 0   the format of a log without any FeatureLevelRecord
    level 1   FeatureLevelRecord; the ranges of levels in registrations; an ISR may be empty, and a partition may have eligible
              leader replicas (KIP-966); a partition may be reassigned (KIP-455); replicas are assigned to log directories
              (KIP-858), which may be cordoned (KIP-1066); reports of unclean elections
    level 2   access rules; SCRAM credentials of users (KIP-554); client quotas (KIP-546)

A node that finds a level above those that it knows does not start, or stops, with one sentence (`UnsupportedLevel`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from strandline.controller.metadata.records import (
    LEVEL_MAX,
    LEVEL_MIN,
    AnyRecord,
    FeatureLevelRecord,
    decode_record,
)
from strandline.protocol.errors import BrokerError, ErrorCode, UsageError
from strandline.protocol.feature_names import METADATA_VERSION
from strandline.protocol.messages.admin import FinalizedFeature
from strandline.protocol.messages.common import SupportedFeature


class Levels(NamedTuple):
    """The range of levels that a node supports."""

    lowest: int
    highest: int

    def __str__(self) -> str:
        return f"{self.lowest} to {self.highest}" if self.lowest < self.highest else f"{self.lowest}"

    def include(self, level: int) -> bool:
        return self.lowest <= level <= self.highest

    @property
    def features(self) -> tuple[SupportedFeature, ...]:
        """The range as a node sends it and as its registration holds it."""
        return (SupportedFeature(METADATA_VERSION, self.lowest, self.highest),)


SUPPORTED = Levels(LEVEL_MIN, LEVEL_MAX)
"""The range of this version of the software."""
LEVEL_0_ONLY = Levels(0, 0)
"""The range of a version that sends no range: it is older than the levels."""


def levels_of(features: Iterable[SupportedFeature]) -> Levels:
    """The range of a node that sent these features."""
    return next((Levels(f.min_version, f.max_version) for f in features if f.name == METADATA_VERSION), LEVEL_0_ONLY)


def finalized(level: int) -> list[FinalizedFeature]:
    """The cluster's level as a node answers it in the handshake; empty at level 0, which no record names."""
    return [FinalizedFeature(METADATA_VERSION, level, level)] if level else []


class UnsupportedLevel(UsageError):
    """The cluster's metadata has a level that this node does not support."""

    def __init__(self, level: int, supported: Levels) -> None:
        super().__init__(
            f"the metadata of this cluster has level {level} ({METADATA_VERSION}), and this version of Strandline supports "
            f"{supported}: start the version that the other nodes run"
        )


def require_level(needed: int, level: int, what: str) -> None:
    """Raise BrokerError UNSUPPORTED_VERSION if the cluster's level is lower than a request needs. `what`: its subject, plural."""
    if level < needed:
        raise BrokerError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"{what} need level {needed} of {METADATA_VERSION}, and the cluster has level {level}; `strandline features upgrade` "
            "raises it",
        )


def check_level(level: int, supported: Levels) -> None:
    """Raise UnsupportedLevel if a node with this range must not take part at this level."""
    if not supported.include(level):
        raise UnsupportedLevel(level, supported)


def decode_records(values: Iterable[bytes | memoryview], supported: Levels) -> list[AnyRecord]:
    """Decode the records of a batch or a snapshot in order. Raises UnsupportedLevel at a level outside the range, before it
    decodes the records after it; PeerError for a record that is not readable."""
    decoded = []
    for value in values:
        record = decode_record(value)
        if isinstance(record, FeatureLevelRecord) and record.name == METADATA_VERSION:
            check_level(record.feature_level, supported)
        decoded.append(record)
    return decoded
