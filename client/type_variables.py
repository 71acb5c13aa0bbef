"""The type variables of `Producer[K, V]`, `Consumer[K, V]` and `ConsumerRecord[K, V]`.

A client without a serializer (or deserializer) has bytes, and `Producer` without brackets means `Producer[bytes, bytes]`. Python
3.13 is the first one whose type variables have defaults (PEP 696). Type checkers know them for every version through
typing_extensions, which they include, so no program must install it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    K = TypeVar("K", default=bytes)
    V = TypeVar("V", default=bytes)
    K_co = TypeVar("K_co", covariant=True, default=bytes)
    V_co = TypeVar("V_co", covariant=True, default=bytes)
else:
    from typing import TypeVar

    K, V = TypeVar("K"), TypeVar("V")
    """The types of the key and the value of a record, as the program sends or receives them."""
    K_co, V_co = TypeVar("K_co", covariant=True), TypeVar("V_co", covariant=True)
    """The same in a record, which does not change: a function that takes records with any value takes those with a str."""
