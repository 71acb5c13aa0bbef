"""Names the field of a message that does not match the schema.

msgspec describes the place by numbers, because messages are arrays: ``Expected `int` >= 0 - at `$[9][0][1][0]` ``. A reader needs
the names: ``topic_partitions[0].partitions[0]: Expected `int` >= 0``.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

_PLACE = re.compile(r"(?P<problem>.*) - at `\$(?P<path>(\[[^\]]*\])+)`", re.DOTALL)
_INDEX = re.compile(r"\[([^\]]*)\]")


def with_field_names(kind: Any, error: str) -> str:
    """The text of an `msgspec.ValidationError` about a message of this type, with the names of its fields."""
    found = _PLACE.fullmatch(error)
    if found is None:
        return error
    path = ""
    at: Any = msgspec.inspect.type_info(kind)
    for index in _INDEX.findall(found["path"]):
        name, at = _step(at, index)
        path += name
    return f"{path.lstrip('.')}: {found['problem']}"


def _step(at: Any, index: str) -> tuple[str, Any]:
    """The next part of the path, and the type of the value there; None if it is not known."""
    if isinstance(at, msgspec.inspect.UnionType):
        at = next((each for each in at.types if not isinstance(each, msgspec.inspect.NoneType)), None)
    if isinstance(at, msgspec.inspect.StructType) and index.isdecimal() and int(index) < len(at.fields):
        field = at.fields[int(index)]
        return f".{field.name}", field.type
    return f"[{index}]", getattr(at, "item_type", None)
