"""The options of `Table`, and those of its consumer, producer and admin client, which are taken from them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from strandline.client.option_types import Choice, Duration, Flag, Function, OrNone, Text, Whole
from strandline.client.options import (
    REQUEST_SIZE_MAX,
    REQUEST_SIZE_MIN,
    ClientKeywords,
    ClientOptions,
    Deserializer,
    Partitioner,
    Serializer,
    option,
    table_of,
)

__all__ = ["TableKeywords", "TableOptions", "options_for"]

_FUNCTION = OrNone(Function())
_SNAPSHOT_INTERVAL_MS = 300_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions(ClientOptions):
    """The options of `Table`."""

    snapshot_dir: str | None = option(
        None,
        OrNone(Text(1)),
        "A folder for snapshots, one file per partition. With it, a table that starts again reads only the records that were "
        "appended after the snapshot. None: it reads the whole log.",
    )
    snapshot_interval_ms: int = option(
        _SNAPSHOT_INTERVAL_MS, Duration(1), "The time between two snapshots. There is one more when the table stops.", "ms"
    )
    delivery_timeout_ms: int = option(
        30_000,
        Duration(1),
        "How long one attempt to write a record may take until it is acknowledged. A conditional write that is not acknowledged "
        "by then looks in the log whether it was written.",
        "ms",
    )
    compression_type: Literal["none", "gzip", "snappy", "lz4", "zstd"] | None = option(
        None, OrNone(Choice("none", "gzip", "snappy", "lz4", "zstd")), "The codec of the batches that the table writes."
    )
    max_request_size: int = option(
        1_048_576, Whole(REQUEST_SIZE_MIN, REQUEST_SIZE_MAX), "The largest record that the table may write.", "bytes"
    )
    client_rack: str | None = option(
        None, OrNone(Text(1, 1024)), "The rack where the table runs, as for `Consumer`: it reads from a replica there."
    )
    check_crcs: bool = option(True, Flag(), "Compare each batch with its checksum.")
    fetch_max_wait_ms: int = option(
        500,
        Duration(),
        "How long a broker holds a fetch while it has no records for it; always less than `request_timeout_ms`.",
        "ms",
    )
    max_partition_fetch_bytes: int = option(
        4_194_304, Whole(1), "The most that a broker returns per partition in one response.", "bytes"
    )
    key_serializer: Serializer | None = option(  # noqa: RUF009
        None, _FUNCTION, "Turns keys into bytes. Equal keys must become the same bytes. Without it, keys are bytes."
    )
    key_deserializer: Deserializer | None = option(  # noqa: RUF009
        None, _FUNCTION, "Turns the bytes of keys into what `items`, `keys` and changes have as key."
    )
    value_serializer: Serializer | None = option(  # noqa: RUF009
        None, _FUNCTION, "Turns values into bytes. Without it, values are bytes."
    )
    value_deserializer: Deserializer | None = option(  # noqa: RUF009
        None, _FUNCTION, "Turns the bytes of values into what `get`, `items` and changes return, at each call."
    )
    partitioner: Partitioner | None = option(  # noqa: RUF009
        None,
        _FUNCTION,
        "Chooses the partition of a key, like the `partitioner` of `Producer`. All writers of the topic need the same one.",
    )


class TableKeywords(ClientKeywords, total=False):
    """The keyword arguments of `Table`, for type checkers, without the four functions that decide its types."""

    snapshot_dir: str | None
    snapshot_interval_ms: int
    delivery_timeout_ms: int
    compression_type: Literal["none", "gzip", "snappy", "lz4", "zstd"] | None
    max_request_size: int
    client_rack: str | None
    check_crcs: bool
    fetch_max_wait_ms: int
    max_partition_fetch_bytes: int
    partitioner: Partitioner | None


_OWN = ("snapshot_dir", "snapshot_interval_ms", "key_serializer", "key_deserializer", "value_serializer", "value_deserializer")
"""The options that only the table applies: its consumer and its producer have keys and values in bytes."""


def options_for(kind: type[ClientOptions], options: TableOptions) -> dict[str, Any]:
    """The options of a table that its consumer (or producer, or admin client) has, too."""
    names = {row.name for row in table_of(kind)} - {*_OWN}
    return {field.name: getattr(options, field.name) for field in dataclasses.fields(options) if field.name in names}
