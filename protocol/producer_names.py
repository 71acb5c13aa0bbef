"""The id of a named producer, which contains the number of the name and the work epoch.

    bit   63   62   61 ........ 31   30 ........ 0
          0    1    number           work epoch             2^62 | number << 31 | work epoch

The controller gives each name a number, once. The owner of the name counts the work epochs (for example, a Spark batch each).
So a broker needs no table to see that two ids belong to one name, and which of them is older. Ids of producers without a name
are below 2^62.
"""

from __future__ import annotations

FIRST_NAMED = 1 << 62
"""The smallest id of a named producer."""
NAMED, NAMED_BITS = 0x40, 0xC0
"""The first byte of the id of a named producer, and the mask for it."""
WORK_EPOCH_MAX = 2**31 - 1
NUMBER_MAX = 2**31 - 2
"""The number above it belongs to no name: fences have it (`records/fence.py`)."""
NAME_LENGTH_MAX = 255
"""Characters."""
NOTE_BYTES_MAX = 1024
"""The limit of a note that the first process of a work epoch leaves for later ones. Every node stores it with the metadata."""

_WORK_EPOCH_BITS = 31
_NUMBER_MASK = 2**31 - 1


def named_producer_id(number: int, work_epoch: int) -> int:
    """The id of one work epoch of a name. The caller has checked that they are at most NUMBER_MAX and WORK_EPOCH_MAX."""
    assert 0 <= number <= NUMBER_MAX, "a name's number has 31 bits, and the largest one belongs to fences"
    assert 0 <= work_epoch <= WORK_EPOCH_MAX, "a work epoch has 31 bits"
    return FIRST_NAMED | number << _WORK_EPOCH_BITS | work_epoch


def is_named(producer_id: int) -> bool:
    return producer_id >= FIRST_NAMED


def number_of(producer_id: int) -> int:
    """The number of the id's name. Only for the id of a named producer."""
    return producer_id >> _WORK_EPOCH_BITS & _NUMBER_MASK


def work_epoch_of(producer_id: int) -> int:
    """The id's work epoch; 0 for an id without a name."""
    return producer_id & WORK_EPOCH_MAX if producer_id >= FIRST_NAMED else 0


def family_of(producer_id: int) -> int:
    """The id of work epoch 0 of the same name, which is the same for all its work epochs. An id without a name is its own
    family."""
    return producer_id & ~WORK_EPOCH_MAX if producer_id >= FIRST_NAMED else producer_id
