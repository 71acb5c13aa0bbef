"""The types of options: which values a type accepts, how a value is read from text, and how documents describe the type.

`check` takes a value as a program writes it (`5`, `True`, `"all"`) and returns its normal form. `parse` takes the text of a
properties file (`"5"`, `"true"`, `"all"`). Both raise `ValueError` without a message; `text` says what is accepted.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from strandline.protocol.errors import UsageError

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1

Address = tuple[str, int]


class OptionType:
    """One type. `text` of a subclass says what it accepts, as the end of the sentence "NAME must be ..."."""

    text: str

    def check(self, value: Any) -> Any:
        """The normal form of a value that a program writes. ValueError if the type does not accept it."""
        raise NotImplementedError

    def parse(self, text: str) -> Any:
        """The normal form of a value that is text in a properties file. ValueError if the type does not accept it. By default the
        type accepts the same texts as from a program."""
        return self.check(text)


def _whole(value: Any) -> int:
    """An int, or an object that Python accepts as one (numpy's integers), but not a bool."""
    if isinstance(value, bool):
        raise ValueError
    try:
        return operator.index(value)
    except TypeError:
        raise ValueError from None


class Whole(OptionType):
    """A whole number within bounds, but not a bool."""

    def __init__(self, least: int = 0, most: int = INT32_MAX) -> None:
        self.least, self.most = least, most
        self.text = f"a whole number from {least} to {most}"

    def check(self, value: Any) -> int:
        number = _whole(value)
        if not self.least <= number <= self.most:
            raise ValueError
        return number

    def parse(self, text: str) -> int:
        return self.check(int(text))


class Duration(Whole):
    """A duration. Floats, which a program gets from seconds (`0.29 * 1000`), are rounded to a whole number."""

    def __init__(self, least: int = 0) -> None:
        super().__init__(least)
        self.text = f"a number from {least} to {self.most}"

    def check(self, value: Any) -> int:
        if isinstance(value, float):
            if not self.least <= value <= self.most:  # A comparison with NaN is False, too.
                raise ValueError
            return round(value)
        return super().check(value)


class Number(OptionType):
    """A finite number of at least `least`."""

    def __init__(self, least: float = 0, most: float = INT32_MAX) -> None:
        self.least, self.most = least, most
        self.text = f"a number from {least} to {most}"

    def check(self, value: Any) -> float:
        number = value if isinstance(value, float) else _whole(value)
        if not self.least <= number <= self.most:  # A comparison with NaN is False, too.
            raise ValueError
        return number

    def parse(self, text: str) -> float:
        value = float(text)
        return self.check(int(value) if value.is_integer() else value)


class Flag(OptionType):
    """A bool; in text "true" or "false", in any case, as in Kafka's properties files."""

    text = "True or False"

    def check(self, value: Any) -> bool:
        if not isinstance(value, bool):
            raise ValueError
        return value

    def parse(self, text: str) -> bool:
        """The bool that the text names. ValueError for any other text."""
        known = {"true": True, "false": False}
        if text.lower() not in known:
            raise ValueError
        return known[text.lower()]


class Choice(OptionType):
    """One of some words. `synonyms`: other spellings, and the word that each of them means."""

    def __init__(self, *words: str, synonyms: Mapping[str, str] | None = None) -> None:
        self.words = words
        self.synonyms = dict(synonyms or {})
        quoted = [f'"{word}"' for word in (*words, *self.synonyms)]
        self.text = f"{', '.join(quoted[:-1])} or {quoted[-1]}"

    def check(self, value: Any) -> str:
        if not isinstance(value, str):
            raise ValueError
        word = self.synonyms.get(value, value)
        if word not in self.words:
            raise ValueError
        return word


class Acks(OptionType):
    """ "all" or -1, 1, 0, but not a bool, although in Python `True == 1`."""

    text = '"all" (or -1), 1 or 0'

    def check(self, value: Any) -> int | str:
        if isinstance(value, str) and value == "all":
            return value
        if isinstance(value, bool) or not isinstance(value, int) or value not in (-1, 0, 1):
            raise ValueError
        return value

    def parse(self, text: str) -> int | str:
        return text if text == "all" else self.check(int(text))


class Text(OptionType):
    def __init__(self, least: int = 0, most: int | None = None) -> None:
        self.least, self.most = least, most
        length = f" of {least} to {most} characters" if most is not None else ""
        self.text = f"a str{length}"

    def check(self, value: Any) -> str:
        if not isinstance(value, str) or len(value) < self.least or (self.most is not None and len(value) > self.most):
            raise ValueError
        return value


class Bytes(OptionType):
    """Bytes; the text of a properties file is encoded in UTF-8."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.text = f"at most {most} bytes"

    def check(self, value: Any) -> bytes:
        if not isinstance(value, bytes) or len(value) > self.most:
            raise ValueError
        return value

    def parse(self, text: str) -> bytes:
        return self.check(text.encode())


class Function(OptionType):
    """A callable; it cannot be written in a properties file. Its result is used at once, so a coroutine function is rejected."""

    text = "a function (not async)"

    def check(self, value: Any) -> Any:
        if not callable(value) or inspect.iscoroutinefunction(value):
            raise ValueError
        return value


class Instance(OptionType):
    """An object of a class; it cannot be written in a properties file."""

    def __init__(self, kind: type[Any], text: str) -> None:
        self.kind, self.text = kind, text

    def check(self, value: Any) -> Any:
        if not isinstance(value, self.kind):
            raise ValueError
        return value


class Path(OptionType):
    """The path of a file: a str, or a `pathlib.Path`. The normal form is a str."""

    text = "a path"

    def check(self, value: Any) -> str:
        path = value if isinstance(value, str) else getattr(value, "__fspath__", lambda: None)()
        if not isinstance(path, str) or not path:
            raise ValueError
        return path


@dataclass(frozen=True, slots=True)
class Tokens:
    """A source of tokens, as a coroutine function. `source` may be async or not."""

    source: Callable[[], Any] = field(repr=False)

    async def __call__(self) -> str:
        token = self.source()
        return str(await token if inspect.isawaitable(token) else token)


class TokenSource(OptionType):
    """An object with a method `token`, as aiokafka's providers are, or a function; async or not."""

    text = "an object with a method `token`, or a function"

    def check(self, value: Any) -> Tokens:
        source = getattr(value, "token", value)
        if not callable(source):
            raise ValueError
        return value if isinstance(value, Tokens) else Tokens(source)


class Nothing(OptionType):
    """The type of an option of other clients that is not supported."""

    text = "None"

    def check(self, value: Any) -> None:
        raise ValueError


class Addresses(OptionType):
    """The addresses of bootstrap servers: a str "host:port,host:port", or a sequence of strs "host:port"."""

    text = '"host:port,host:port", or a list of "host:port"'

    def check(self, value: Any) -> str | Sequence[str]:
        """The value as it was given. UsageError if it names no address, or one is not host:port; ValueError for another type."""
        parse_bootstrap(value)
        checked: str | Sequence[str] = value
        return checked


class OrNone(OptionType):
    """None, or a value that another type accepts."""

    def __init__(self, other: OptionType) -> None:
        self.other = other
        self.text = "None" if isinstance(other, Nothing) else f"{other.text}, or None"

    def check(self, value: Any) -> Any:
        return None if value is None else self.other.check(value)

    def parse(self, text: str) -> Any:
        return self.other.parse(text)


def parse_bootstrap(servers: str | Sequence[str]) -> list[Address]:
    """The addresses in a str "host:port,host:port" or in a sequence of strs "host:port", each once, in the order given.

    ValueError if `servers` is neither; UsageError if it names no address, or one of them is not host:port."""
    if not isinstance(servers, str) and (not isinstance(servers, Iterable) or isinstance(servers, (bytes, Mapping))):
        raise ValueError
    parts = servers.split(",") if isinstance(servers, str) else list(servers)
    if not all(isinstance(part, str) for part in parts):
        raise ValueError
    addresses = [_parse_address(part.strip()) for part in parts if part.strip()]
    if not addresses:
        raise UsageError(f"bootstrap_servers names no address: {servers!r}")
    return list(dict.fromkeys(addresses))


def _parse_address(text: str) -> Address:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise UsageError(f"bootstrap_servers: an address is written host:port, such as localhost:9092, not {text!r}")
    return host.strip("[]"), int(port)
