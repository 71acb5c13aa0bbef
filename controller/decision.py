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
    """Written as one atomic batch; none: the decision was a reading."""
    on_appended: Callable[[int], None] | None = None
    """Told the last offset of the batch, after it was appended and applied."""
