"""Conditions that a test can wait for: comparisons of values of a cluster, combined with `&`, `|` and `~`.

    leader("orders", 0) != 1        isr("orders", 0) == {2, 3}        hw("orders", 0) >= 10
    (caught_up("orders", 0) & (controller() != 101)) | ~fenced(2)

The expression itself reads nothing; `cluster.until(...)` evaluates it again and again. A value that cannot be determined (the
topic does not exist, the partition has no leader, the leader is dead) is *unknown*: a comparison with it does not hold, and
neither does the opposite comparison. So `leader("orders", 0) != 1` holds when another broker leads, and not while the
partition has no leader; that is `leaderless("orders", 0)`.

A value is compared only with values that it can have: `leader(...) != "1"` and `isr(...) != [1, 2]` would always hold, so they
raise TypeError. For the same reason `until` refuses a condition about a node that the cluster does not have.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Set
from typing import TYPE_CHECKING, Any, NoReturn

from strandline.testing.kit.view import View

if TYPE_CHECKING:
    from strandline.testing.kit.network import Rule

BROKER, CONTROLLER, BROKERS, NUMBER = "broker", "controller", "brokers", "number"
"""Kinds of values: id of a broker, id of a controller, set of broker ids, number."""
Named = tuple[str, frozenset[int]]
"""BROKER or CONTROLLER, and ids; the cluster must have at least one of them."""

NAMING = ("==", "!=", "in")
"""Comparisons of one id that name nodes; `leader(t) >= 0` names none. A set of ids names them in every comparison."""

_NO_TRUTH = (
    "a condition is not true or false by itself: wait for it with `await cluster.until(...)`, combine conditions with &, | and ~"
)


class Condition:
    """A statement about a cluster, for `cluster.until`. Combine conditions with `&` (and), `|` (or) and `~` (not).

    It has no truth value of its own: `if condition` and `not condition` raise TypeError.
    """

    def holds(self, view: View) -> bool | None:
        """Whether it holds in this view; None: unknown."""
        raise NotImplementedError

    def values(self) -> Iterable[Value]:
        """The values that it reads."""
        raise NotImplementedError

    def named(self) -> Iterable[Named]:
        """The nodes that it names. A condition about a node that does not exist would never change."""
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
    """Two conditions with `&` or `|`, with SQL's three-valued logic: false & unknown is false, true | unknown is true."""

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
    """A condition from a value that is itself true, false or unknown."""

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
    """A value of a cluster. Comparing it with a number or a set (`==`, `<`, `is_in`, `contains`, ...) gives a `Condition`.

    TypeError: the other side is not a value that this one can have, or a comparison is missing (`if leader(...)`).
    """

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
        """Topic and index of the partition that it belongs to."""
        self.kind = kind
        self.named = tuple(named)
        """The nodes whose state it is."""

    def read(self, view: View) -> Any:
        """The value in this view; None: unknown."""
        return self._read(view)

    def _compare(self, sign: str, compare: Callable[[Any, Any], bool], expected: Any) -> Condition:
        if isinstance(expected, (Value, Condition)):
            raise TypeError(f"{self._text} can be compared only with a plain value, not with {expected!r}")
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
                f"{self._text} {sign} needs {what}, not {expected!r}; any other comparison would always have the same result"
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
        """The value is one of `allowed`: `leader("orders", 0).is_in({2, 3})`."""
        return self._compare("in", lambda seen, those: seen in those, frozenset(allowed))

    def contains(self, item: Any) -> Condition:
        """The set contains `item`: `isr("orders", 0).contains(2)`."""
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


# -- values and conditions of a cluster -------------------------------------------------------------------------------


def _of_partition(name: str, topic: str, partition: int, attribute: str, kind: str = NUMBER) -> Value:
    def read(view: View) -> Any:
        found = view.partition(topic, partition)
        return None if found is None else getattr(found, attribute)

    return Value(f"{name}({topic!r}, {partition})", read, (topic, partition), kind=kind)


def leader(topic: str, partition: int = 0) -> Value:
    """Id of the broker that leads the partition, by the controllers' metadata; unknown if there is no leader."""
    return _of_partition("leader", topic, partition, "leader", BROKER)


def epoch(topic: str, partition: int = 0) -> Value:
    """The partition's leader epoch, which each election raises by one."""
    return _of_partition("epoch", topic, partition, "leader_epoch")


def isr(topic: str, partition: int = 0) -> Value:
    """The broker ids in the ISR. Compare it with a set: `==`, `>=` (contains all of them), `<=`."""
    return _of_partition("isr", topic, partition, "isr", BROKERS)


def hw(topic: str, partition: int = 0) -> Value:
    """The leader's high watermark, an offset: all records below it are committed."""
    return _of_partition("hw", topic, partition, "high_watermark")


def log_end(topic: str, partition: int, broker: int) -> Value:
    """Log end offset of one replica: the offset of its next record. Unknown if the nodes are processes."""

    def read(view: View) -> Any:
        found = view.partition(topic, partition)
        return None if found is None else found.log_ends.get(broker)

    return Value(f"log_end({topic!r}, {partition}, {broker})", read, (topic, partition), named=[(BROKER, frozenset((broker,)))])


def caught_up(topic: str, partition: int = 0) -> Condition:
    """All replicas are in the ISR and have all records of the leader, and all records are committed."""
    return Truth(_of_partition("caught_up", topic, partition, "is_caught_up"))


def cleaned(topic: str, partition: int = 0) -> Condition:
    """The topic is compacted, and every replica's cleaner has been over all segments except the open one, and over at least one.
    A cleaner leaves a log alone while no more than `min.cleanable.dirty.ratio` of it is dirty. Unknown for other topics, and if
    the nodes are processes."""
    return Truth(_of_partition("cleaned", topic, partition, "is_cleaned"))


def leaderless(topic: str, partition: int = 0) -> Condition:
    """The partition exists and has no leader."""

    def read(view: View) -> bool | None:
        found = view.partition(topic, partition)
        return None if found is None else found.leader is None

    return Truth(Value(f"leaderless({topic!r}, {partition})", read, (topic, partition)))


def hits(rule: Rule) -> Value:
    """Number of messages that a rule of `cluster.drop` or `cluster.delay` has met."""
    return Value(f"hits({rule.name})", lambda view: rule.hits)


def controller() -> Value:
    """Id of the active controller; unknown if there is none."""
    return Value("controller()", lambda view: view.controller(), kind=CONTROLLER)


def fenced(broker: int) -> Condition:
    """The controllers have fenced the broker: it cannot become leader or join an ISR."""

    def read(view: View) -> bool | None:
        found = view.fenced()
        return None if found is None else broker in found

    return Truth(Value(f"fenced({broker})", read, named=[(BROKER, frozenset((broker,)))]))
