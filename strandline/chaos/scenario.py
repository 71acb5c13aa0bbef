"""A scenario: a TOML file with faults for a cluster under load, conditions to wait for, and claims that must hold.

    title = "The leader is killed"
    why = "..."                     what replication does here, for the reader
    requires = ["network"]          capabilities that not every cluster has (steps.py)

    [parameters]                    numbers that `--set` can change; steps refer to them as "$pause_s"
    pause_s = 30

    [load]
    partitions = 3                  one record per partition and interval

    [[steps]]
    do = "kill"
    target = "leader"               resolved when the step begins
    as = "victim"                   a name for this node in later steps

Parsing is strict: each mistake is a UsageError of one sentence with the file, the step, and the nearest known word.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from strandline.chaos.steps import (
    ACTIONS,
    CAPABILITIES,
    CLAIMS,
    COMMON,
    CONDITIONS,
    COUNT,
    NUMBER,
    REQUIRED,
    TARGET,
    TARGET_WORDS,
    TARGETS,
    TEXT,
    Field,
    Word,
)
from strandline.protocol.errors import ErrorCode, UsageError


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """The steady load: one record per partition and interval, idempotent, acks=all."""

    partitions: int = 3
    interval_ms: int = 5
    """The resolution of the gaps between acknowledgements."""
    value_bytes: int = 100
    preload_mb: int = 0
    """MiB written before the first step, so that a new replica needs a while to catch up."""
    replicas: int = 3
    """Replicas of each partition, at most one per broker."""


@dataclass(frozen=True, slots=True)
class Step:
    number: int
    """Number of the step, from 1."""
    do: str
    kind: str
    """The condition of a `wait`, the claim of an `expect`; otherwise the same as `do`."""
    values: Mapping[str, Any]

    @property
    def word(self) -> Word:
        return _table_of(self.do)[self.kind]

    @property
    def note(self) -> str:
        return str(self.values["note"])

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def __str__(self) -> str:
        shown = [v for n in ("target", "away_from") if (v := self.values.get(n))]
        who = " ".join(v if isinstance(v, str) else ", ".join(v) for v in shown)
        head = self.do if self.kind == self.do else f"{self.do} {self.kind}"
        return f"{head} {who}".strip()


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    """The file's name without its suffix."""
    title: str
    why: str
    requires: tuple[str, ...]
    load: LoadPlan
    steps: tuple[Step, ...]
    gap_goal_s: float | None = None
    """Expected upper bound of the longest gap on an idle machine. It is reported, and is no part of the verdict."""
    parameters: Mapping[str, float] = field(default_factory=dict)


OURS = Path(__file__).with_name("scenarios")
"""The scenario files of the package. In a checkout they are the files of deploy/chaos."""


def find_scenario(written: str) -> Path:
    """The path of an existing file, or of the package's scenario with this name. Raises UsageError for any other name."""
    path = Path(written)
    names = [file.stem for file in OURS.glob("*.toml")]
    if path.exists() or len(path.parts) > 1:
        return path  # Reading a missing path raises its own error.
    if path.name.removesuffix(".toml") not in names:
        hint = nearest(path.name, names) or "; `strandline chaos list` lists the scenarios"
        raise UsageError(f"there is no file and no scenario {written!r}{hint}")
    return OURS / f"{path.name.removesuffix('.toml')}.toml"


def load_scenario(path: Path, overrides: Mapping[str, str] | None = None) -> Scenario:
    """Read and check a scenario file. `overrides`: parameter -> value as text. Raises UsageError if the file is invalid."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as e:
        reason = e.strerror if isinstance(e, OSError) else "it is not text"
        raise UsageError(f"cannot read the scenario {path}: {reason}") from None
    return parse_scenario(text, path.name, overrides)


def parse_scenario(text: str, file: str, overrides: Mapping[str, str] | None = None) -> Scenario:
    """The scenario in `text`. `file` names it in messages; `overrides` replace parameters. Raises UsageError."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as e:
        raise UsageError(f"{file} is not TOML: {e}") from None
    return _Parser(file, document).scenario(overrides or {})


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean "kill"?`, or nothing."""
    near = get_close_matches(word, sorted(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


def _table_of(do: str) -> Mapping[str, Word]:
    return CONDITIONS if do == "wait" else CLAIMS if do == "expect" else ACTIONS


class _Parser:
    def __init__(self, file: str, document: dict[str, Any]) -> None:
        self.where = file
        self.document = document
        self.parameters: dict[str, float] = {}
        self.aliases: set[str] = set()
        """Names that earlier steps gave with `as`."""

    def _fail(self, text: str) -> UsageError:
        return UsageError(f"{self.where}: {text}")

    def scenario(self, overrides: Mapping[str, str]) -> Scenario:
        document = self.document
        known = {"title", "why", "requires", "gap_goal_s", "parameters", "load", "steps"}
        self._refuse_unknown(document, known, "key")
        self.parameters = self._parameters(document.get("parameters", {}), overrides)
        requires = self._requires(document.get("requires", []))
        steps = document.get("steps")
        if not isinstance(steps, list) or not steps:
            raise self._fail("it has no [[steps]]")
        goal = document.get("gap_goal_s")
        return Scenario(
            name=Path(self.where).stem,
            title=self._text("title"),
            why=self._text("why"),
            requires=requires,
            load=self._load(document.get("load", {})),
            steps=self._steps(steps, requires),
            gap_goal_s=None if goal is None else self._number("gap_goal_s", goal),
            parameters=self.parameters,
        )

    # -- the head

    def _text(self, key: str) -> str:
        value = self.document.get(key)
        if not isinstance(value, str) or not value.strip():
            raise self._fail(f"{key} must be a text, and is {'missing' if value is None else repr(value)}")
        return " ".join(value.split())

    def _refuse_unknown(self, table: object, known: Iterable[str], what: str) -> None:
        if not isinstance(table, dict):
            raise self._fail(f"a table is expected, not {table!r}")
        for name in table:
            if name not in known:
                raise self._fail(f"unknown {what} {name!r}{nearest(name, known)}")

    def _parameters(self, given: object, overrides: Mapping[str, str]) -> dict[str, float]:
        if not isinstance(given, dict):
            raise self._fail("[parameters] must be a table")
        parameters = {name: self._number(f"parameter {name}", value) for name, value in given.items()}
        for name, text in overrides.items():
            if name not in parameters:
                has = f"it has {', '.join(parameters)}" if parameters else "it has none"
                raise self._fail(f"there is no parameter {name!r} to set ({has}){nearest(name, parameters)}")
            try:
                parameters[name] = self._number(f"parameter {name}", float(text))
            except ValueError:
                raise self._fail(f"parameter {name} must be a number, not {text!r}") from None
        return parameters

    def _requires(self, given: object) -> tuple[str, ...]:
        if not isinstance(given, list):
            raise self._fail("requires must be a list")
        for capability in given:
            if capability not in CAPABILITIES:
                raise self._fail(f"unknown capability {capability!r} in requires{nearest(str(capability), CAPABILITIES)}")
        return tuple(given)

    def _load(self, given: object) -> LoadPlan:
        known = {f.name: f.default for f in fields(LoadPlan)}
        self._refuse_unknown(given, known, "key in [load]:")
        assert isinstance(given, dict)
        for name, value in given.items():
            least = 0 if name == "preload_mb" else 1
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise self._fail(f"load.{name} must be a whole number of at least {least}, not {value!r}")
        plan = LoadPlan(**given)
        if plan.value_bytes < 24:
            raise self._fail("load.value_bytes must be at least 24: each value holds its own number")
        return plan

    # -- steps

    def _steps(self, given: list[Any], requires: tuple[str, ...]) -> tuple[Step, ...]:
        file, steps = self.where, []
        for number, table in enumerate(given, 1):
            self.where = f"{file}, step {number}"
            step = self._step(number, table)
            if (capability := step.word.requires) is not None and capability not in requires:
                raise self._fail(f'"{step.do}" needs requires = ["{capability}"]')
            steps.append(step)
        self.where = file
        return tuple(steps)

    def _step(self, number: int, table: object) -> Step:
        if not isinstance(table, dict):
            raise self._fail(f"a table is expected, not {table!r}")
        given = dict(table)
        do = self._word(given, "do", ACTIONS)
        selector = {"wait": "until", "expect": "claim"}.get(do)
        kind = self._word(given, selector, _table_of(do)) if selector else do
        expected = {**_table_of(do)[kind].fields, **COMMON}
        self._refuse_unknown(given, expected, f'field of "{kind}":')
        values = {name: self._value(name, spec, given) for name, spec in expected.items()}
        if values.get("as"):
            self._take_alias(values["as"])
        return Step(number, do, kind, values)

    def _word(self, given: dict[str, Any], key: str, table: Mapping[str, Word]) -> str:
        word = given.pop(key, None)
        if word is None:
            raise self._fail(f"{key} is missing; it is one of {', '.join(table)}")
        if word not in table:
            raise self._fail(f"unknown {key} {word!r}{nearest(str(word), table) or '; it is one of ' + ', '.join(table)}")
        return str(word)

    def _take_alias(self, name: str) -> None:
        if name in TARGET_WORDS:
            raise self._fail(f"as = {name!r} would hide the target of that name")
        self.aliases.add(name)

    def _value(self, name: str, spec: Field, given: Mapping[str, Any]) -> Any:
        if name not in given:
            if spec.default is REQUIRED:
                raise self._fail(f"{name} is missing ({spec.meaning})")
            return spec.default
        value = given[name]
        if spec.kind in (TARGET, TARGETS):
            return self._targets(name, value, spec.kind)
        if spec.kind in (NUMBER, COUNT):
            number = self._number(name, value)
            if spec.kind == COUNT and (number != int(number) or number < 1):
                raise self._fail(f"{name} must be a whole number of at least 1, not {value!r}")
            return int(number) if spec.kind == COUNT else number
        if not isinstance(value, str) or (not value and spec.kind != TEXT):
            raise self._fail(f"{name} must be a text, not {value!r}")
        if spec.choices and value not in spec.choices:
            raise self._fail(f"{name} must be {' or '.join(map(repr, spec.choices))}, not {value!r}")
        if name == "error" and value not in ErrorCode.__members__:
            raise self._fail(f"there is no error code {value!r}{nearest(value, ErrorCode.__members__)}")
        return value

    def _number(self, name: str, value: object) -> float:
        if isinstance(value, str) and value.startswith("$"):
            if value[1:] not in self.parameters:
                raise self._fail(f"{name}: there is no parameter {value[1:]!r}{nearest(value[1:], self.parameters)}")
            return self.parameters[value[1:]]
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e6:
            raise self._fail(f"{name} must be a number of at least 0, not {value!r}")
        return value

    def _targets(self, name: str, value: object, kind: str) -> str | tuple[str, ...]:
        """One word, or (where several may be meant) a list of words."""
        words = [value] if isinstance(value, str) else value
        if not isinstance(words, list) or not words or (kind == TARGET and len(words) > 1):
            raise self._fail(
                f"{name} must be {'one target' if kind == TARGET else 'a target or a list of targets'}, not {value!r}"
            )
        for word in words:
            if not isinstance(word, str) or not (word in TARGET_WORDS or word in self.aliases or is_node_name(word)):
                known = [*TARGET_WORDS, *self.aliases]
                raise self._fail(f"unknown {name} {word!r}{nearest(str(word), known) or '; it is one of ' + ', '.join(known)}")
        return words[0] if len(words) == 1 else tuple(words)


def is_node_name(word: str) -> bool:
    """Whether the word has the form of a node's name, such as `broker-1`. The cluster may have no such node."""
    role, _, number = word.rpartition("-")
    return role in ("broker", "controller") and number.isdigit()
