"""What a test can wait for: values of a cluster that are compared, and conditions that are combined.

    leader("orders", 0) != 1        isr("orders", 0) == {2, 3}        hw("orders", 0) >= 10
    (caught_up("orders", 0) & (controller() != 101)) | ~fenced(2)

Nothing is looked at when the expression is written; `cluster.until(...)` looks, again and again. Whatever cannot be said
(the topic is not known, nobody leads, the leader is dead) is *unknown*: a comparison with it does not hold, and neither
does its opposite. So `leader("orders", 0) != 1` is somebody else who leads, not the moment in which nobody does; that
is `leaderless("orders", 0)`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Set
from typing import Any, NoReturn

from strandline.testing.kit.view import View

_NO_TRUTH = "a condition has no truth by itself: `await cluster.until(...)` waits for it; combine with &, | and ~"


class Condition:
    """Holds, does not hold, or cannot be said (None)."""

    def holds(self, view: View) -> bool | None:
        raise NotImplementedError

    def values(self) -> Iterable[Value]:
        """What it looks at."""
        raise NotImplementedError

    def __and__(self, other: Condition) -> Condition:
        return Both("&", self, other)

    def __or__(self, other: Condition) -> Condition:
        return Both("|", self, other)

    def __invert__(self) -> Condition:
        return Not(self)

    def __bool__(self) -> NoReturn:
        raise TypeError(_NO_TRUTH)


class Both(Condition):
    """Two, as in SQL: what one of them settles does not depend on the other."""

    def __init__(self, sign: str, left: Condition, right: Condition) -> None:
        self._sign, self._left, self._right = sign, left, right

    def holds(self, view: View) -> bool | None:
        results = (self._left.holds(view), self._right.holds(view))
        settled = self._sign == "|"
        if settled in results:
            return settled
        return None if None in results else not settled

    def values(self) -> Iterable[Value]:
        return (*self._left.values(), *self._right.values())

    def __repr__(self) -> str:
        return " ".join((_part(self._left), self._sign, _part(self._right)))


class Not(Condition):
    def __init__(self, inner: Condition) -> None:
        self._inner = inner

    def holds(self, view: View) -> bool | None:
        result = self._inner.holds(view)
        return None if result is None else not result

    def values(self) -> Iterable[Value]:
        return self._inner.values()

    def __repr__(self) -> str:
        return f"~{_part(self._inner)}"


class Comparison(Condition):
    def __init__(self, value: Value, sign: str, compare: Callable[[Any, Any], bool], expected: Any) -> None:
        self._value, self._sign, self._compare, self._expected = value, sign, compare, expected

    def holds(self, view: View) -> bool | None:
        seen = self._value.read(view)
        return None if seen is None else bool(self._compare(seen, self._expected))

    def values(self) -> Iterable[Value]:
        return (self._value,)

    def __repr__(self) -> str:
        return f"{self._value} {self._sign} {_shown(self._expected)}"


class Truth(Condition):
    """A value that is a truth by itself."""

    def __init__(self, value: Value) -> None:
        self._value = value

    def holds(self, view: View) -> bool | None:
        seen = self._value.read(view)
        return None if seen is None else bool(seen)

    def values(self) -> Iterable[Value]:
        return (self._value,)

    def __repr__(self) -> str:
        return str(self._value)


class Value:
    """Something that can be seen of a cluster. Compare it, and you have a condition."""

    def __init__(self, text: str, read: Callable[[View], Any], place: tuple[str, int] | None = None) -> None:
        self._text = text
        self._read = read
        self.place = place
        """The partition that it is about."""

    def read(self, view: View) -> Any:
        """What it is now; None: unknown."""
        return self._read(view)

    def _compare(self, sign: str, compare: Callable[[Any, Any], bool], expected: Any) -> Condition:
        if isinstance(expected, (Value, Condition)):
            raise TypeError(f"{self._text} is compared with a plain value, not with {expected!r}")
        if isinstance(expected, Set):
            expected = frozenset(expected)
        return Comparison(self, sign, compare, expected)

    def __eq__(self, expected: Any) -> Condition:  # type: ignore[override]
        return self._compare("==", operator.eq, expected)

    def __ne__(self, expected: Any) -> Condition:  # type: ignore[override]
        return self._compare("!=", operator.ne, expected)

    def __lt__(self, expected: Any) -> Condition:
        return self._compare("<", operator.lt, expected)

    def __le__(self, expected: Any) -> Condition:
        return self._compare("<=", operator.le, expected)

    def __gt__(self, expected: Any) -> Condition:
        return self._compare(">", operator.gt, expected)

    def __ge__(self, expected: Any) -> Condition:
        return self._compare(">=", operator.ge, expected)

    def is_in(self, allowed: Iterable[Any]) -> Condition:
        return self._compare("in", lambda seen, those: seen in those, frozenset(allowed))

    def contains(self, item: Any) -> Condition:
        return self._compare("contains", lambda seen, one: one in seen, item)

    def __bool__(self) -> NoReturn:
        raise TypeError(_NO_TRUTH)

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return self._text


def _part(condition: Condition) -> str:
    return f"({condition!r})" if isinstance(condition, (Both, Comparison)) else repr(condition)


def _shown(value: Any) -> str:
    return "{" + ", ".join(map(repr, sorted(value))) + "}" if isinstance(value, frozenset) else repr(value)


# -- what there is to see ---------------------------------------------------------------------------------------------


def _of_partition(name: str, topic: str, partition: int, attribute: str) -> Value:
    def read(view: View) -> Any:
        found = view.partition(topic, partition)
        return None if found is None else getattr(found, attribute)

    return Value(f"{name}({topic!r}, {partition})", read, (topic, partition))


def leader(topic: str, partition: int = 0) -> Value:
    """The broker that leads the partition, as the controllers have it."""
    return _of_partition("leader", topic, partition, "leader")


def epoch(topic: str, partition: int = 0) -> Value:
    """The partition's leader epoch: one more with each election."""
    return _of_partition("epoch", topic, partition, "leader_epoch")


def isr(topic: str, partition: int = 0) -> Value:
    """The set of in-sync replicas; compare it with a set: ==, >= (all of these are in), <=."""
    return _of_partition("isr", topic, partition, "isr")


def hw(topic: str, partition: int = 0) -> Value:
    """The leader's high watermark: everything below is committed."""
    return _of_partition("hw", topic, partition, "high_watermark")


def log_end(topic: str, partition: int, broker: int) -> Value:
    """The end of one replica's log (LEO). Of processes it is not known."""

    def read(view: View) -> Any:
        found = view.partition(topic, partition)
        return None if found is None else found.log_ends.get(broker)

    return Value(f"log_end({topic!r}, {partition}, {broker})", read, (topic, partition))


def caught_up(topic: str, partition: int = 0) -> Condition:
    """Every replica is in the ISR and has everything, and everything is committed."""
    return Truth(_of_partition("caught_up", topic, partition, "is_caught_up"))


def leaderless(topic: str, partition: int = 0) -> Condition:
    """Nobody leads the partition."""

    def read(view: View) -> bool | None:
        found = view.partition(topic, partition)
        return None if found is None else found.leader is None

    return Truth(Value(f"leaderless({topic!r}, {partition})", read, (topic, partition)))


def controller() -> Value:
    """The active controller."""
    return Value("controller()", lambda view: view.controller())


def fenced(broker: int) -> Condition:
    """The controllers count the broker out."""

    def read(view: View) -> bool | None:
        found = view.fenced()
        return None if found is None else broker in found

    return Truth(Value(f"fenced({broker})", read))
