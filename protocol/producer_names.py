"""What the id of a named producer says by itself: that it has a name, whose it is, and of which work epoch.

    bit   63   62   61 ........ 31   30 ........ 0
          0    1    number           work epoch             2^62 | number << 31 | work epoch

A name gets its number once, from the controller; a work epoch is what the owner of the name counts (a Spark batch, say).
So a broker needs no table to see that two ids belong to one name, and which of them is the older. Ids of producers
without a name stay below 2^62.
"""

from __future__ import annotations

FIRST_NAMED = 1 << 62
"""Ids from here on have a name."""
NUMBER_MAX = WORK_EPOCH_MAX = 2**31 - 1
NAME_LENGTH_MAX = 255
"""Characters."""
NOTE_BYTES_MAX = 1024
"""Of what an attempt may leave for later ones of its work epoch: it is kept with the metadata, on every node."""

_WORK_EPOCH_BITS = 31


def named_producer_id(number: int, work_epoch: int) -> int:
    """The id of one work epoch of a name. Both are 0 .. 2^31-1: who calls has checked that."""
    assert 0 <= number <= NUMBER_MAX, "a name's number has 31 bits"
    assert 0 <= work_epoch <= WORK_EPOCH_MAX, "a work epoch has 31 bits"
    return FIRST_NAMED | number << _WORK_EPOCH_BITS | work_epoch


def is_named(producer_id: int) -> bool:
    return producer_id >= FIRST_NAMED


def number_of(producer_id: int) -> int:
    """Whose it is; only for an id that has a name."""
    return producer_id >> _WORK_EPOCH_BITS & NUMBER_MAX


def work_epoch_of(producer_id: int) -> int:
    """Which work epoch of its name it is; 0 for an id without a name, which has only one."""
    return producer_id & WORK_EPOCH_MAX if producer_id >= FIRST_NAMED else 0


def family_of(producer_id: int) -> int:
    """The same for all work epochs of a name: the id of work epoch 0. An id without a name is its own family."""
    return producer_id & ~WORK_EPOCH_MAX if producer_id >= FIRST_NAMED else producer_id
