"""What the id of a named producer says by itself: that it has a name, whose it is, and of which generation.

    bit   63   62   61 ........ 31   30 ........ 0
          0    1    number           generation             2^62 | number << 31 | generation

A name gets its number once, from the controller; a generation is what the owner of the name counts (a Spark batch, say).
So a broker needs no table to see that two ids belong to one name, and which of them is the older. Ids of producers
without a name stay below 2^62.
"""

from __future__ import annotations

FIRST_NAMED = 1 << 62
"""Ids from here on have a name."""
NUMBER_MAX = GENERATION_MAX = 2**31 - 1
NAME_LENGTH_MAX = 255
"""Characters."""
NOTE_BYTES_MAX = 1024
"""Of what an attempt may leave for later ones of its generation: it is kept with the metadata, on every node."""

_GENERATION_BITS = 31


def named_producer_id(number: int, generation: int) -> int:
    """The id of one generation of a name. Both are 0 .. 2^31-1: who calls has checked that."""
    assert 0 <= number <= NUMBER_MAX, "a name's number has 31 bits"
    assert 0 <= generation <= GENERATION_MAX, "a generation has 31 bits"
    return FIRST_NAMED | number << _GENERATION_BITS | generation


def is_named(producer_id: int) -> bool:
    return producer_id >= FIRST_NAMED


def number_of(producer_id: int) -> int:
    """Whose it is; only for an id that has a name."""
    return producer_id >> _GENERATION_BITS & NUMBER_MAX


def generation_of(producer_id: int) -> int:
    """Which generation of its name it is; 0 for an id without a name, which has only one."""
    return producer_id & GENERATION_MAX if producer_id >= FIRST_NAMED else 0


def family_of(producer_id: int) -> int:
    """The same for all generations of a name: the id of generation 0. An id without a name is its own family."""
    return producer_id & ~GENERATION_MAX if producer_id >= FIRST_NAMED else producer_id
