"""A replay repeats a run exactly: it has the seed, and the differences from the options that the seed draws.

    replay = Replay(42, changes={"faults": [3, 7], "brokers": 2})
    report = replay.run()
    replay.command          strandline simulate --seed 42 --options '{"faults": [3, 7], "brokers": 2}'

`changes` is a JSON object with fields of `Options`. Settings are laid over the drawn ones, and null removes one. In a list, a
number refers to the drawn item (a fault by its number; a topic, producer or consumer by its position), an object with "drawn" is
that item with other values, and any other object is a new item. So the command of a run that was shrunk to two faults stays
readable.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from typing import Any

import msgspec

from strandline.protocol.errors import UsageError
from strandline.testing.simulation.group_plans import GROUP_FAULTS, MemberPlan
from strandline.testing.simulation.options import (
    DIRECTORY_FAULTS,
    DOUBLE_FAULTS,
    FAULTS,
    ConsumerPlan,
    FaultPlan,
    Options,
    ProducerPlan,
    TopicPlan,
    draw_options,
)
from strandline.testing.simulation.runs.run import Report, run_seed
from strandline.testing.simulation.transaction_plans import TRANSACTION_FAULTS, WriterPlan

Changes = Mapping[str, Any]

LISTS: dict[str, type] = {
    "topics": TopicPlan,
    "producers": ProducerPlan,
    "consumers": ConsumerPlan,
    "members": MemberPlan,
    "writers": WriterPlan,
    "shippers": WriterPlan,
    "transactional_topics": TopicPlan,
    "faults": FaultPlan,
}
LAID_OVER = ("settings", "controller_settings", "kinds")
DRAWN = "drawn"


@dataclass(frozen=True)
class Replay:
    seed: int
    scenario: str | None = None
    until_s: float | None = None
    mutation: str | None = None
    changes: Changes | None = None

    @classmethod
    def of(cls, seed: int, options: Options, **more: Any) -> Replay:
        """A replay with these options, which may differ from those that the seed draws."""
        return cls(seed, changes=difference(options, draw_options(seed)) or None, **more)

    @cached_property
    def options(self) -> Options | None:
        """The options to run with; None for those that the seed draws, and for a scenario, which has none."""
        return None if not self.changes else changed(draw_options(self.seed), self.changes)

    def run(self, *, full_trace: bool = False) -> Report:
        return run_seed(
            self.seed,
            scenario=self.scenario,
            until_s=self.until_s,
            full_trace=full_trace,
            options=self.options,
            mutation=self.mutation,
            replay=shlex.join(self._more),
        )

    @property
    def _more(self) -> list[str]:
        """The arguments after seed and scenario on the command line."""
        words = []
        if self.until_s is not None:
            words += ["--until", f"{self.until_s:g}"]
        if self.mutation is not None:
            words += ["--mutation", self.mutation]
        if self.changes:
            words += ["--options", json.dumps(self.changes, separators=(",", ":"))]
        return words

    @property
    def command(self) -> str:
        scenario = [] if self.scenario is None else ["--scenario", self.scenario]
        return shlex.join(["strandline", "simulate", "--seed", str(self.seed), *scenario, *self._more])

    def as_dict(self) -> dict[str, Any]:
        """The fields that differ from the defaults, for JSON."""
        values = {name: getattr(self, name) for name in ("scenario", "until_s", "mutation", "changes")}
        return {"seed": self.seed, **{name: value for name, value in values.items() if value is not None}}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Replay:
        return cls(**values)


# -- from what was drawn to what is meant -----------------------------------------------------------------------------


def changed(drawn: Options, changes: Changes) -> Options:
    """The drawn options with these changes. Raises `UsageError` if a change is invalid."""
    if not isinstance(changes, Mapping):
        raise UsageError(f'the options are a JSON object such as {{"brokers": 2}}, not {json.dumps(changes)}')
    values = drawn.as_dict()
    for name, value in changes.items():
        _known("option", name, values)
        if name in LISTS and isinstance(value, Sequence) and not isinstance(value, str):
            value = [_item(name, item, values[name]) for item in value]
        elif name in LAID_OVER and isinstance(value, Mapping):
            value = {key: each for key, each in {**values[name], **value}.items() if each is not None}
        values[name] = value
    if "kinds" not in changes and isinstance(changes.get("faults"), Sequence):
        values["kinds"] = kinds_of(values["faults"], drawn.kinds)
    try:
        options: Options = msgspec.convert(values, Options)
    except msgspec.ValidationError as e:
        raise UsageError(f"these options are invalid: {e}") from None
    _check(options)
    return options


def kinds_of(faults: Iterable[Any], weights: Mapping[str, float]) -> dict[str, float]:
    """The kinds of faults that a changed plan still has. This is for readers only: a run follows its plan."""
    kinds = [fault["kind"] for fault in faults if isinstance(fault, Mapping) and isinstance(fault.get("kind"), str)]
    return {kind: weights.get(kind, FAULTS.get(kind, 0.0)) for kind in (*FAULTS, *kinds) if kind in kinds}


def _item(name: str, item: Any, drawn: Sequence[Mapping[str, Any]]) -> Any:
    if not isinstance(item, Mapping):
        return _drawn(name, item, drawn)
    for key in item:
        _known(f"field of {name}", key, [*LISTS[name].__annotations__, DRAWN])
    if DRAWN not in item:
        return item
    return {**_drawn(name, item[DRAWN], drawn), **{key: value for key, value in item.items() if key != DRAWN}}


def _drawn(name: str, number: Any, drawn: Sequence[Mapping[str, Any]]) -> Any:
    found = {item.get("number", place): item for place, item in enumerate(drawn)}
    if not isinstance(number, int) or number not in found:
        there_are = ", ".join(map(str, found)) or "none"
        raise UsageError(f"{name} were drawn with the numbers {there_are}; {json.dumps(number)} is not among them")
    return found[number]


def _known(what: str, name: str, known: Collection[str]) -> None:
    if name not in known:
        raise UsageError(f"there is no {what} called {name!r}{nearest(name, known)}")


def nearest(word: str, known: Collection[str]) -> str:
    """The end of an error message: the most similar known name, or all of them."""
    near = get_close_matches(word, sorted(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else f"; there are {', '.join(known)}"


def numbered(what: str, word: str, known: Collection[str], waiting: Mapping[str, str]) -> str:
    """ "S03" for "S03", "s3" or "3". Raises `UsageError` for an unknown number, and for one that waits: `waiting` names the
    missing feature."""
    letter = min(known)[0]
    number = int(word.upper().removeprefix(letter)) if re.fullmatch(f"{letter}?[0-9]{{1,4}}", word, re.IGNORECASE) else -1
    name = f"{letter}{number:02}"
    if name in known:
        return name
    if name in waiting:
        raise UsageError(f"{what} {name} does not exist yet: it needs {waiting[name]}")
    near = min(known, key=lambda each: (abs(int(each[1:]) - number), each)) if number >= 0 else None
    first, *_, last = sorted(known, key=lambda each: int(each[1:]))
    raise UsageError(
        f"there is no {what} {word!r}{f'; did you mean {near}?' if near else ''} "
        f"(`strandline simulate --list` shows {first} to {last})"
    )


def parse_seeds(text: str) -> range:
    """The seeds of a range `A..B`, both ends included. Raises `UsageError` for any other text."""
    first, dots, last = text.partition("..")
    if not dots or not first.isdecimal() or not last.isdecimal() or int(last) < int(first):
        raise UsageError(f"--seeds takes a range such as 0..99, not {text!r}")
    return range(int(first), int(last) + 1)


def _check(options: Options) -> None:
    """Check what the types do not ensure. Raises `UsageError`."""
    topics = {topic.name: topic for topic in options.topics}
    if not topics:
        raise UsageError("there must be a topic")
    for name in [producer.topic for producer in options.producers] + [consumer.topic for consumer in options.consumers]:
        _known("topic", name, topics)
    for name, value in options.as_dict().items():
        if isinstance(value, float) and not 0 <= value < 1e6:
            raise UsageError(f"{name} is {value:g}: it must be 0 or more")
    for fault in options.faults:
        _known("kind of fault", fault.kind, {**FAULTS, **DOUBLE_FAULTS, **DIRECTORY_FAULTS, **GROUP_FAULTS, **TRANSACTION_FAULTS})
    if len({fault.number for fault in options.faults}) < len(options.faults):
        raise UsageError("two faults have the same number")
    least = {"brokers": options.brokers, "controllers": options.controllers}
    for topic in options.all_topics:
        least[f"partitions of {topic.name}"] = topic.partitions
        least[f"replicas of {topic.name}"] = topic.replication_factor
        if topic.replication_factor > options.brokers:
            raise UsageError(
                f"topic {topic.name} has {topic.replication_factor} replicas, and there are {options.brokers} brokers"
            )
    for what, number in least.items():
        if not 1 <= number <= 99:
            raise UsageError(f"{number} {what}: there must be 1 to 99")


# -- and back ---------------------------------------------------------------------------------------------------------


def difference(options: Options, drawn: Options) -> dict[str, Any]:
    """The smallest changes that turn `drawn` into these options: `changed(drawn, difference(options, drawn)) == options`."""
    here, there = options.as_dict(), drawn.as_dict()
    changes: dict[str, Any] = {}
    for name, value in here.items():
        if value == there[name]:
            continue
        if name in LISTS:
            value = [_reference(item, there[name]) for item in value]
        elif name in LAID_OVER:
            gone = dict.fromkeys(key for key in there[name] if key not in value)
            value = {**{key: each for key, each in value.items() if there[name].get(key) != each}, **gone}
        changes[name] = value
    if "faults" in changes:
        changes.pop("kinds", None)
        meant = kinds_of(here["faults"], drawn.kinds)
        if here["kinds"] != meant:
            changes["kinds"] = {**dict.fromkeys({**meant, **drawn.kinds}), **here["kinds"]}
    return changes


def _reference(item: Mapping[str, Any], drawn: Sequence[Mapping[str, Any]]) -> Any:
    """The number of an equal drawn item; otherwise the nearest drawn item with the differences."""
    best: Any = item
    for place, other in enumerate(drawn):
        number = other.get("number", place)
        changes = {key: value for key, value in item.items() if other[key] != value}
        if not changes:
            return number
        if len(changes) + 1 < len(best) and other.get("kind") == item.get("kind"):
            best = {DRAWN: number, **changes}
    return best
