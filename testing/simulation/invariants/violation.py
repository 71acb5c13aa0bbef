"""The error that a check raises."""

from __future__ import annotations


class Violation(AssertionError):
    """An invariant does not hold; the text is one sentence with the numbers."""

    def __init__(self, invariant: str, text: str, *, partition: str = "", node: int | None = None) -> None:
        super().__init__(f"{invariant}: {text}")
        self.invariant = invariant
        """The number of the invariant, such as "I6"."""
        self.text = text
        self.partition = partition
        """The name of the partition, such as `orders-0`; empty if the violation is about none."""
        self.node = node
