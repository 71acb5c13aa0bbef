"""One guard that can be removed, and the table of them. Each file with mutations adds its own to the table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Patch = tuple[Any, str, Any]
"""Owner, name of the attribute, and its replacement."""


@dataclass(frozen=True, slots=True)
class Mutation:
    number: str
    """The number of the mutation, such as "M01"."""
    meaning: str
    """The behaviour of the code without the guard."""
    patches: Callable[[], list[Patch]]


MUTATIONS: dict[str, Mutation] = {}
WAITING: dict[str, str] = {}
"""Mutations of guards that are not built yet, with the feature that they wait for."""


def mutation(number: str, meaning: str) -> Callable[[Callable[[], list[Patch]]], Callable[[], list[Patch]]]:
    def enter(patches: Callable[[], list[Patch]]) -> Callable[[], list[Patch]]:
        MUTATIONS[number] = Mutation(number, meaning, patches)
        return patches

    return enter
