"""What a decision is: records to write, and the reply that may be given once they are committed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from strandline.controller.metadata.records import AnyRecord

R = TypeVar("R")


@dataclass(slots=True)
class Decision(Generic[R]):
    """Nothing has changed yet when a decision is returned, except what only this process knows (sessions)."""

    reply: R
    records: list[AnyRecord] = field(default_factory=list)
    """Written as one atomic batch (see `may_split`); none: the decision was a reading."""
    on_appended: Callable[[int], None] | None = None
    """Told the offset of the last record, after all were appended and applied."""
    may_split: bool = False
    """A decision over all partitions of a broker may need more than the quorum takes in one batch. Its records may be
    written as several, and a fail-over may keep only the first of them: a later decision must complete them."""
    cause: str = ""
    """Why partitions change by it, in one word of docs/logs.md (`cause`); for the log alone."""
