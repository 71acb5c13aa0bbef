"""What a test can wait for: values of a cluster that are compared, and conditions that are combined.

    leader("orders", 0) != 1        isr("orders", 0) == {2, 3}        hw("orders", 0) >= 10
    (caught_up("orders", 0) & (controller() != 101)) | ~fenced(2)

Nothing is looked at when the expression is written; `cluster.until(...)` looks, again and again. Whatever cannot be said
(the topic is not known, nobody leads, the leader is dead) is *unknown*: a comparison with it does not hold, and neither
does its opposite. So `leader("orders", 0) != 1` is somebody else who leads, not the moment in which nobody does; that
is `leaderless("orders", 0)`.

A value is compared with what it can be: `leader(...) != "1"` and `isr(...) != [1, 2]` hold always, so they are refused. `until`
refuses a condition about a node that the cluster does not have, for the same reason.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Set
from typing import TYPE_CHECKING, Any, NoReturn

from strandline.testing.kit.view import View

if TYPE_CHECKING:
    from strandline.testing.kit.network import Rule

BROKER, CONTROLLER, BROKERS, NUMBER = "broker", "controller", "brokers", "number"
"""What a value is: the id of a broker, of a controller, a set of brokers' ids, a number."""
Named = tuple[str, frozenset[int]]
"""BROKER or CONTROLLER, and ids of which one has to be known."""

NAMING = ("==", "!=", "in")
"""Comparisons of one id that name nodes; `leader(t) >= 0` names none. A set of ids names them in every comparison."""

_NO_TRUTH = "a condition has no truth by itself: `await cluster.until(...)` waits for it; combine with &, | and ~"


class Condition:
    """Holds, does not hold, or cannot be said (None)."""

    def holds(self, view: View) -> bool | None:
        raise NotImplementedError

    def values(self) -> Iterable[Value]:
        """What it looks at."""
        raise NotImplementedError

    def named(self) -> Iterable[Named]:
        """The nodes that it names; a condition about a node that there is not would hold, or not, for ever."""
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

    def named(self) -> Iterable[Named]:
        return (*self._left.named(), *self._right.named())

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

    def named(self) -> Iterable[Named]:
        return self._inner.named()

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

    def named(self) -> Iterable[Named]:
        kind, expected = self._value.kind, self._expected
        if kind == BROKERS:
            ids = expected if isinstance(expected, Set) else (expected,)
            return [(BROKER, frozenset((node,))) for node in ids]
        if kind in (BROKER, CONTROLLER) and self._sign in NAMING:
            return [(kind, expected if isinstance(expected, frozenset) else frozenset((expected,)))]
        return self._value.named

    def __repr__(self) -> str:
        return f"{self._value} {self._sign} {_shown(self._expected)}"


class Truth(Condition):
    """A value that is a truth by itself."""

    def __init__(self, value: Value) -> None:
        self._value = value

    def named(self) -> Iterable[Named]:
        return self._value.named

    def holds(self, view: View) -> bool | None:
        seen = self._value.read(view)
        return None if seen is None else bool(seen)

    def values(self) -> Iterable[Value]:
        return (self._value,)

    def __repr__(self) -> str:
        return str(self._value)


class Value:
    """Something that can be seen of a cluster. Compare it, and you have a condition."""

    def __init__(
        self,
        text: str,
        read: Callable[[View], Any],
        place: tuple[str, int] | None = None,
        *,
        kind: str = NUMBER,
        named: Iterable[Named] = (),
    ) -> None:
        self._text = text
        self._read = read
        self.place = place
        """The partition that it is about."""
        self.kind = kind
        self.named = tuple(named)
        """The nodes that it is about."""

    def read(self, view: View) -> Any:
        """What it is now; None: unknown."""
        return self._read(view)

    def _compare(self, sign: str, compare: Callable[[Any, Any], bool], expected: Any) -> Condition:
        if isinstance(expected, (Value, Condition)):
            raise TypeError(f"{self._text} is compared with a plain value, not with {expected!r}")
        if isinstance(expected, Set):
            expected = frozenset(expected)
        self._check(sign, expected)
        return Comparison(self, sign, compare, expected)

    def _check(self, sign: str, expected: Any) -> None:
        wants_set = sign == "in" or (self.kind == BROKERS and sign != "contains")
        given = expected if wants_set and isinstance(expected, Set) else [expected]
        if wants_set != isinstance(expected, Set) or not all(type(one) is int for one in given):
            what = "a set of numbers, such as {1, 2}" if wants_set else "a number"
            raise TypeError(
                f"{self._text} {sign} takes {what}, not {expected!r}; any other comparison would always come out the same"
            )

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


def _of_partition(name: str, topic: str, partition: int, attribute: str, kind: str = NUMBER) -> Value:
    def read(view: View) -> Any:
        found = view.partition(topic, partition)
        return None if found is None else getattr(found, attribute)

    return Value(f"{name}({topic!r}, {partition})", read, (topic, partition), kind=kind)


def leader(topic: str, partition: int = 0) -> Value:
    """The broker that leads the partition, as the controllers have it."""
    return _of_partition("leader", topic, partition, "leader", BROKER)


def epoch(topic: str, partition: int = 0) -> Value:
    """The partition's leader epoch: one more with each election."""
    return _of_partition("epoch", topic, partition, "leader_epoch")


def isr(topic: str, partition: int = 0) -> Value:
    """The set of in-sync replicas; compare it with a set: ==, >= (all of these are in), <=."""
    return _of_partition("isr", topic, partition, "isr", BROKERS)


def hw(topic: str, partition: int = 0) -> Value:
    """The leader's high watermark: everything below is committed."""
    return _of_partition("hw", topic, partition, "high_watermark")


def log_end(topic: str, partition: int, broker: int) -> Value:
    """The end of one replica's log (LEO). Of processes it is not known."""

    def read(view: View) -> Any:
        found = view.partition(topic, partition)
        return None if found is None else found.log_ends.get(broker)

    return Value(f"log_end({topic!r}, {partition}, {broker})", read, (topic, partition), named=[(BROKER, frozenset((broker,)))])


def caught_up(topic: str, partition: int = 0) -> Condition:
    """Every replica is in the ISR and has everything, and everything is committed."""
    return Truth(_of_partition("caught_up", topic, partition, "is_caught_up"))


def leaderless(topic: str, partition: int = 0) -> Condition:
    """Nobody leads the partition."""

    def read(view: View) -> bool | None:
        found = view.partition(topic, partition)
        return None if found is None else found.leader is None

    return Truth(Value(f"leaderless({topic!r}, {partition})", read, (topic, partition)))


def hits(rule: Rule) -> Value:
    """How many messages a `drop` or `delay` has met."""
    return Value(f"hits({rule.name})", lambda view: rule.hits)


def controller() -> Value:
    """The active controller."""
    return Value("controller()", lambda view: view.controller(), kind=CONTROLLER)


def fenced(broker: int) -> Condition:
    """The controllers count the broker out."""

    def read(view: View) -> bool | None:
        found = view.fenced()
        return None if found is None else broker in found

    return Truth(Value(f"fenced({broker})", read, named=[(BROKER, frozenset((broker,)))]))
