"""The types that a table returns: entries, changes, and the error of a conditional write."""

from __future__ import annotations

from typing import Any, Final, Generic, NamedTuple

from strandline.client.errors import ClientError
from strandline.client.type_variables import K, V


class Anything:
    """The type of `ANY`."""

    def __repr__(self) -> str:
        return "ANY"


ANY: Final = Anything()
"""A value for `expect`: write, whatever version the key has."""


class TableEntry(NamedTuple, Generic[V]):
    """The value of a key, and its version: the offset of the record with the value, in its partition."""

    value: V
    version: int
    partition: int


class TableChange(NamedTuple, Generic[K, V]):
    """A change of a key, as `Table.watch` returns it."""

    key: K
    old: V | None
    """The value before the change; None: the table had no such key. If changes were merged, the value before the first one."""
    new: V | None
    """The value after the change; None: the key was deleted."""
    version: int | None
    """The offset of the record that changed the key. None if the table has not read that record: the partition was read again,
    and no longer has the key."""
    merged: int
    """The number of earlier changes of the key that are contained in this one, because they were not taken in time."""


class VersionConflict(ClientError):
    """`put` or `delete` of a table had an `expect`, and the key has another version. Nothing was written. The table shows the
    key's present value and version: decide again with that version."""

    def __init__(
        self, *, key: Any, expected: int | None, actual: int | None, value: Any, topic: str, partition: int | None = None
    ) -> None:
        self.key = key
        self.expected = expected
        self.actual = actual
        """The version of the key; None: there is no such key."""
        self.value = value
        """The value of the key; None: there is no such key."""
        wanted = "no such key" if expected is None else f"version {expected}"
        found = "there is none" if actual is None else f"the version is {actual}"
        super().__init__(
            f"the write of key {key!r:.100} expects {wanted}, but {found}; nothing was written", topic=topic, partition=partition
        )
