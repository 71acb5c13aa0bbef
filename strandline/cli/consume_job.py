"""The parsed options of `strandline consume`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, NamedTuple

from strandline.cli.start import Start

if TYPE_CHECKING:
    from strandline.client.consumer.records import ConsumerRecord

RecordWriter = Callable[["ConsumerRecord"], bytes]
"""Renders a record."""


class Job(NamedTuple):
    """The records to print, the offsets to start from, and the output format."""

    bootstrap: str
    topic: str
    partition: int | None
    start: Start
    start_text: str
    records_max: int | None
    exit_at_end: bool
    write: RecordWriter
    client_rack: str | None = None
    isolation_level: Literal["read_uncommitted", "read_committed"] = "read_uncommitted"
    group: str | None = None
