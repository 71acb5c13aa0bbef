"""Hypothesis strategies for any value of any message class, built from its schema."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import strategies as st

from strandline.protocol.apis import APIS
from strandline.protocol.messages.common import Message

MESSAGE_CLASSES: list[type[Message]] = [cls for api in APIS.values() for cls in (api.request, api.response)]


def messages(cls: type[Message]) -> st.SearchStrategy[Any]:
    return _strategy(msgspec.inspect.type_info(cls))


def _strategy(kind: Any) -> st.SearchStrategy[Any]:
    match kind:
        case msgspec.inspect.NoneType():
            return st.none()
        case msgspec.inspect.BoolType():
            return st.booleans()
        case msgspec.inspect.FloatType():
            return st.floats(allow_nan=False)
        case msgspec.inspect.IntType(ge=low, le=high):
            assert low is not None, "every integer on the wire has its bounds"
            assert high is not None, "every integer on the wire has its bounds"
            return st.one_of(st.integers(low, high), st.sampled_from([low, high]))
        case msgspec.inspect.StrType(max_length=longest):
            assert longest is not None, "every text on the wire has its bound"
            return st.text(max_size=8)
        case msgspec.inspect.BytesType(min_length=shortest, max_length=longest):
            return st.binary(min_size=shortest or 0, max_size=longest or 8)
        case msgspec.inspect.MemoryViewType():
            return st.binary(max_size=300).map(memoryview)
        case msgspec.inspect.ListType(item_type=item):
            return st.lists(_strategy(item), max_size=3)
        case msgspec.inspect.UnionType(types=types):
            return st.one_of([_strategy(t) for t in types])
        case msgspec.inspect.StructType(cls=cls, fields=fields):
            return st.builds(cls, **{field.name: _strategy(field.type) for field in fields})
    raise AssertionError(f"no strategy for {kind}")
