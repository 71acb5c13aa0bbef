"""The log directory of each replica, as the controller knows it (KIP-858).

A partition's registration has a directory id for each replica. The first hundred ids, as numbers, are reserved:

    UNASSIGNED   the replica has not been assigned to a directory, or its broker has only one: it counts as online
    LOST         the replica is in a directory that its broker could not open: it is offline
    MIGRATING    Kafka's mark for replicas from the time before directories; not written here, and counts as online
"""

from __future__ import annotations

from collections.abc import Collection

DirectoryIds = tuple[bytes, ...]

UNASSIGNED, LOST, MIGRATING = (bytes(15) + bytes([number]) for number in range(3))
RESERVED = 100
"""Ids below this number are reserved for marks. No directory has one."""


def is_reserved(directory_id: bytes) -> bool:
    """Whether the id is one of the marks above, or reserved for further ones."""
    return int.from_bytes(directory_id) < RESERVED


def is_online(directory_id: bytes, online: Collection[bytes]) -> bool:
    """Whether a replica in this directory is online, if its broker has registered the directories `online`."""
    return directory_id in (UNASSIGNED, MIGRATING) or directory_id in online
