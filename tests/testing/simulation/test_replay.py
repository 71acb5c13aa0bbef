"""Options on the command line: a command runs what it says, and every run has a command."""

from __future__ import annotations

import dataclasses
import json
import shlex

import pytest

from strandline.protocol.errors import UsageError
from strandline.testing.simulation.options import FAULTS, Options, draw_options
from strandline.testing.simulation.runs.replay import Replay, changed, difference, numbered, parse_seeds

SEEDS = range(60)


def shrunk(options: Options) -> Options:
    """The options as shrinking would leave them."""
    faults = [dataclasses.replace(fault, at_s=0.5) if n == 1 else fault for n, fault in enumerate(options.faults)][:3]
    topics = (dataclasses.replace(options.topics[0], partitions=1), *options.topics[1:])
    producers = tuple(dataclasses.replace(plan, burst_max=1, options={"acks": "all"}) for plan in options.producers[:1])
    settings = {key: value for key, value in options.settings.items() if not key.startswith("replica.")}
    more = {"settings": {**settings, "num.io.threads": 4}, "consumers": (), "clock_drift": 0.0}
    return options.replaced(faults=tuple(faults), topics=topics, producers=producers, **more)


@pytest.mark.parametrize("change", [lambda options: options, shrunk, lambda options: options.without("crash")])
def test_difference_to_the_drawn_options_restores_them(change: object) -> None:
    """The difference passes through JSON, as on a command line. If a value were lost, the replay would be another run than the
    one that failed."""
    for seed in SEEDS:
        drawn = draw_options(seed)
        options = change(drawn)  # type: ignore[operator]
        assert changed(drawn, json.loads(json.dumps(difference(options, drawn)))) == options


def test_drawn_options_need_no_arguments() -> None:
    options = draw_options(5)
    assert difference(options, options) == {}
    assert Replay.of(5, options).command == "strandline simulate --seed 5"


def test_plan_change_lists_kept_and_moved_faults() -> None:
    seed = next(seed for seed in SEEDS if len(draw_options(seed).faults) >= 3)
    drawn = draw_options(seed)
    moved = dataclasses.replace(drawn.faults[2], at_s=0.25)
    kept = {drawn.faults[0].kind, moved.kind}
    kinds = {kind: weight for kind, weight in drawn.kinds.items() if kind in kept}
    options = drawn.replaced(faults=(drawn.faults[0], moved), kinds=kinds)
    assert difference(options, drawn) == {"faults": [0, {"drawn": 2, "at_s": 0.25}]}


def test_the_kinds_of_a_changed_plan_are_those_that_it_has() -> None:
    """The command of a run with two faults left must not list thirty kinds that are gone."""
    seed = next(seed for seed in SEEDS if 3 <= len(draw_options(seed).kinds) < len(FAULTS) and draw_options(seed).faults)
    drawn = draw_options(seed)
    one, other = drawn.faults[0], next(kind for kind in FAULTS if kind not in drawn.kinds)
    new = {"number": 900, "at_s": 0.5, "kind": other, "duration_s": 1.0, "draw": 1}
    options = changed(drawn, {"faults": [one.number, new]})
    assert options.kinds == {one.kind: drawn.kinds[one.kind], other: FAULTS[other]}
    left = drawn.replaced(faults=(one,), kinds={one.kind: drawn.kinds[one.kind]})
    assert Replay.of(seed, left).changes == {"faults": [one.number]}


def test_changed_kinds_keep_the_order_of_drawing() -> None:
    """If the order differed each time, two commands could not be compared."""
    seed = next(seed for seed in SEEDS if len(draw_options(seed).kinds) >= 8 and draw_options(seed).faults)
    drawn = draw_options(seed)
    one = drawn.faults[0]
    options = drawn.replaced(faults=(one,), kinds={one.kind: 99.0})
    changes = difference(options, drawn)
    assert changed(drawn, changes) == options
    others = [kind for kind in drawn.kinds if kind != one.kind]
    assert list(changes["kinds"].items()) == [(one.kind, 99.0), *((kind, None) for kind in others)]


def test_a_command_holds_all_that_is_needed() -> None:
    replay = Replay(7, until_s=2.5, mutation="M11", changes={"brokers": 3, "settings": {"log.dir": "a b"}})
    words = shlex.split(replay.command)
    assert words[:8] == ["strandline", "simulate", "--seed", "7", "--until", "2.5", "--mutation", "M11"]
    assert words[8] == "--options"
    assert json.loads(words[9]) == replay.changes
    assert Replay(8, "S03").command == "strandline simulate --seed 8 --scenario S03"


def test_a_replay_goes_through_json() -> None:
    for replay in (Replay(1), Replay(100, "S16"), Replay(7, until_s=2.5, mutation="M11", changes={"brokers": 2})):
        assert Replay.from_dict(json.loads(json.dumps(replay.as_dict()))) == replay


def test_null_removes_a_setting_and_others_stay() -> None:
    drawn = draw_options(1)
    options = changed(drawn, {"settings": {"replica.lag.time.max.ms": None, "num.replica.fetchers": 3}})
    assert "replica.lag.time.max.ms" not in options.settings
    assert options.settings["num.replica.fetchers"] == 3
    assert options.settings["broker.session.timeout.ms"] == drawn.settings["broker.session.timeout.ms"]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"broker": 1}, "did you mean brokers"),
        ({"brokers": "3"}, "Expected `int`"),
        ({"topics": [{"name": "orders"}]}, "missing required field"),
        ({"topics": [{"drawn": 9}]}, "9 is not among them"),
        ({"faults": ["crash"]}, "not among them"),
        ({"faults": 3}, "Expected `array`"),
        ({"producers": [{"drawn": 0, "topic": "nothing"}]}, "no topic called 'nothing'"),
        ({"faults_s": -1}, "0 or more"),
        ({"faults": [{"number": 1, "at_s": 0.1, "kind": "crash", "duration_s": 1.0, "draw": 1}] * 2}, "same number"),
        ({"controllers": 0}, "1 to 99"),
        ({"brokers": 1, "producers": [], "consumers": [], "topics": [{"drawn": 0, "replication_factor": 2}]}, "has 2 replicas"),
    ],
)
def test_changes_that_make_no_sense_are_refused(changes: dict[str, object], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        changed(draw_options(1), changes)


def test_numbers_of_scenarios_may_be_written_as_one_likes() -> None:
    known, waiting = {"S03": 1, "S16": 1}, {"S25": "something"}
    assert [numbered("scenario", word, known, waiting) for word in ("S03", "s3", "3", "s16")] == ["S03", "S03", "S03", "S16"]
    for word, complaint in (("S15", "did you mean S16"), ("25", "needs something"), ("S-3", "no scenario"), ("²", "no scenario")):
        with pytest.raises(UsageError, match=complaint):
            numbered("scenario", word, known, waiting)


def test_a_range_of_seeds_has_both_ends() -> None:
    assert list(parse_seeds("3..5")) == [3, 4, 5]
    for text in ("3", "5..3", "a..b", "-1..3", ""):
        with pytest.raises(UsageError, match="a range such as"):
            parse_seeds(text)
