"""Keys that count for one listener only: `listener.name.<lower-case name of the listener>.<key>`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from strandline.controller.metadata.config_keys import by_name, unknown_key
from strandline.controller.metadata.quota_keys import LISTENER_LIMIT_KEYS
from strandline.controller.metadata.security_keys import PER_LISTENER
from strandline.protocol.errors import UsageError

PREFIX = "listener.name."
_KEYS = by_name((*PER_LISTENER, *LISTENER_LIMIT_KEYS))
OVERRIDABLE = tuple(sorted(_KEYS, key=len, reverse=True))
"""The keys that may differ between listeners, longest first: a key whose name ends with that of another key comes before it."""

Overrides = Mapping[str, Mapping[str, Any]]
"""Lower-case name of a listener -> the keys that were given for it, with their parsed values."""


class SplitKeys(NamedTuple):
    """The keys of a node's configuration, and the parsed ones of single listeners."""

    plain: dict[str, Any]
    overrides: Overrides


def split_overrides(mapping: Mapping[str, Any]) -> SplitKeys:
    """Separate and parse the keys of single listeners. Raises UsageError if one is unknown, or has a wrong value."""
    plain, overrides = {}, dict[str, dict[str, Any]]()
    for name, value in mapping.items():
        if name.startswith(PREFIX):
            listener, key = _parts(name)
            overrides.setdefault(listener, {})[key] = _parse(name, key, value)
        else:
            plain[name] = value
    return SplitKeys(plain, overrides)


def refuse_unknown_listeners(overrides: Overrides, known: Iterable[str]) -> None:
    """Raise UsageError if a key is for a listener that the node does not know, because the key would have no effect."""
    names = [name.lower() for name in known]
    for listener, values in overrides.items():
        if listener not in names:
            key = f"{PREFIX}{listener}.{next(iter(values))}"
            raise UsageError(f"config {key}: there is no listener {listener!r}; the listeners are {', '.join(sorted(names))}")


def is_override(name: str) -> bool:
    """Whether the name is that of a key of one listener. Raises UsageError if it looks like one, but the key is unknown."""
    if not name.startswith(PREFIX):
        return False
    _parts(name)
    return True


def _parts(name: str) -> tuple[str, str]:
    listener, _, key = name.removeprefix(PREFIX).partition(".")
    if key not in _KEYS or not listener or listener != listener.lower():
        if key in _KEYS:
            raise UsageError(f"config {name}: the name of the listener is written in lower case there")
        raise unknown_key(key, _KEYS, f"key of a listener in {name!r}:")
    return listener, key


def _parse(name: str, key: str, value: Any) -> Any:
    try:
        return _KEYS[key].parse(value)
    except UsageError as e:
        raise UsageError(str(e).replace(f"config {key}:", f"config {name}:", 1)) from None
