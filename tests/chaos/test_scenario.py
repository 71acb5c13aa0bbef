"""Scenario files: correct ones are parsed, and a mistake is one sentence with its place and the nearest known word."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.chaos.reference import lines
from strandline.chaos.scenario import Scenario, load_scenario, parse_scenario
from strandline.chaos.steps import ACTIONS
from strandline.protocol.errors import UsageError

FOLDER = Path(__file__).parents[2] / "deploy" / "chaos"
FILES = sorted(FOLDER.glob("*.toml"))

HEAD = 'title = "T"\nwhy = "W"\n'
S = "[[steps]]\n"
KILL = S + 'do = "kill"\ntarget = "leader"\nas = "victim"\n'


def parse(steps: str, head: str = HEAD, **overrides: str) -> Scenario:
    return parse_scenario(head + steps, "some.toml", overrides)


def refusal(steps: str, head: str = HEAD, **overrides: str) -> str:
    with pytest.raises(UsageError) as e:
        parse(steps, head, **overrides)
    assert "\n" not in str(e.value)
    return str(e.value)


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_scenarios_of_the_repository_are_valid(file: Path) -> None:
    scenario = load_scenario(file)
    assert scenario.name == file.stem
    assert scenario.steps


def test_sixteen_scenarios_exist() -> None:
    """A deleted scenario takes its parametrized test with it, so the names are listed here."""
    assert {f.stem for f in FILES} >= {
        *("kill-leader", "kill-follower", "kill-controller", "kill-leader-and-controller", "kill-all"),
        *("rolling-restart", "pause-leader", "partition-leader", "partition-follower", "partition-controller"),
        *("wipe-broker", "disk-full", "disk-loss", "two-of-three-dead", "drain", "unclean-election"),
    }


def test_readme_matches_the_reference() -> None:
    page = (FOLDER / "README.md").read_text()
    assert page.endswith("\n".join(lines()) + "\n"), "run `python -m strandline.chaos.reference`"
    for file in FILES:
        assert f"`{file.name}`" in page


def test_step_has_its_fields_with_their_defaults() -> None:
    scenario = parse(KILL + '[[steps]]\ndo = "wait"\nuntil = "leader-moved"\naway_from = "victim"\n')
    kill, wait = scenario.steps
    assert (kill.number, kill.do, kill.kind, kill["target"], kill["as"]) == (1, "kill", "kill", "leader", "victim")
    assert (wait.number, wait.do, wait.kind, wait["away_from"], wait["within_s"]) == (2, "wait", "leader-moved", "victim", 30)
    assert str(kill) == "kill leader"
    assert str(wait) == "wait leader-moved victim"


def test_why_is_one_paragraph() -> None:
    assert parse(KILL, 'title = "T"\nwhy = """\none\ntwo\n"""\n').why == "one two"


def test_parameters_replace_numbers_and_can_be_set() -> None:
    """So a test can wait for a shorter time than the file's."""
    head = HEAD + "[parameters]\npause_s = 30\n"
    wait = '[[steps]]\ndo = "wait"\nuntil = "seconds"\nseconds = "$pause_s"\n'
    assert parse(wait, head).steps[0]["seconds"] == 30
    assert parse(wait, head, pause_s="6").steps[0]["seconds"] == 6
    assert parse(wait, head, pause_s="6").parameters == {"pause_s": 6}


def test_several_targets_are_a_list() -> None:
    step = parse('[[steps]]\ndo = "kill"\ntarget = ["leader", "active-controller", "broker-3"]\n').steps[0]
    assert step["target"] == ("leader", "active-controller", "broker-3")


@pytest.mark.parametrize(
    ("steps", "sentence"),
    [
        ("", "some.toml: it has no [[steps]]"),
        (S + 'do = "kil"\n', "some.toml, step 1: unknown do 'kil'; did you mean 'kill'?"),
        ('[[steps]]\ntarget = "leader"\n', f"some.toml, step 1: do is missing; it is one of {', '.join(ACTIONS)}"),
        (S + 'do = "kill"\n', "some.toml, step 1: target is missing (the nodes)"),
        (S + 'do = "kill"\ntarget = "laeder"\n', "some.toml, step 1: unknown target 'laeder'; did you mean 'leader'?"),
        (
            KILL + S + 'do = "start"\ntarget = "victm"\n',
            "some.toml, step 2: unknown target 'victm'; did you mean 'victim'?",
        ),
        (S + 'do = "start"\ntarget = "victim"\n', "some.toml, step 1: unknown target 'victim'; it is one of"),
        (S + 'do = "kill"\ntarget = "leader"\nas = "follower"\n', "would hide the target of that name"),
        (
            S + 'do = "kill"\ntarget = "leader"\ntarge = 1\n',
            "step 1: unknown field of \"kill\": 'targe'; did you mean 'target'?",
        ),
        (S + 'do = "wait"\nuntil = "in_sync"\n', "step 1: unknown until 'in_sync'; did you mean 'in-sync'?"),
        (
            S + 'do = "wait"\nuntil = "progress"\nrecords = 0\n',
            "step 1: records must be a whole number of at least 1, not 0",
        ),
        (
            S + 'do = "wait"\nuntil = "progress"\nrecords = true\n',
            "step 1: records must be a number of at least 0, not True",
        ),
        (S + 'do = "wait"\nuntil = "seconds"\nseconds = "$pause"\n', "step 1: seconds: there is no parameter 'pause'"),
        (S + 'do = "wait"\nuntil = "seconds"\nseconds = nan\n', "step 1: seconds must be a number of at least 0, not nan"),
        (
            S + 'do = "expect"\nclaim = "refuses"\nerror = "NOT_ENOUGH_REPLICA"\n',
            "step 1: there is no error code 'NOT_ENOUGH_REPLICA'; did you mean 'NOT_ENOUGH_REPLICAS'?",
        ),
        (S + 'do = "expect"\nclaim = "accepts"\nacks = 1\n', "step 1: acks must be a text, not 1"),
        (S + 'do = "expect"\nclaim = "accepts"\nacks = "2"\n', "step 1: acks must be 'all' or '1', not '2'"),
        (S + 'do = "disconnect"\ntarget = "leader"\n', 'step 1: "disconnect" needs requires = ["network"]'),
        (S + 'do = "probe"\ntarget = ["leader", "follower"]\n', "step 1: target must be one target, not"),
        ("steps = [1]\n", "step 1: a table is expected, not 1"),
        ("[load]\npartition = 1\n" + KILL, "some.toml: unknown key in [load]: 'partition'; did you mean 'partitions'?"),
        ("[load]\npartitions = 0\n" + KILL, "some.toml: load.partitions must be a whole number of at least 1, not 0"),
        ("[load]\nvalue_bytes = 8\n" + KILL, "some.toml: load.value_bytes must be at least 24"),
        ('[parameters]\nx = "1"\n' + KILL, "some.toml: parameter x must be a number of at least 0, not '1'"),
        ("step = 1\n" + KILL, "some.toml: unknown key 'step'; did you mean 'steps'?"),
        ('requires = ["netwrok"]\n' + KILL, "some.toml: unknown capability 'netwrok' in requires; did you mean 'network'?"),
        ("steps = \n", "some.toml is not TOML: "),
    ],
)
def test_mistake_is_named_with_its_place(steps: str, sentence: str) -> None:
    assert sentence in refusal(steps)


def test_title_and_why_are_required() -> None:
    assert refusal(KILL, 'why = "W"\n') == "some.toml: title must be a text, and is missing"
    assert refusal(KILL, 'title = "T"\nwhy = " "\n') == "some.toml: why must be a text, and is ' '"


def test_unknown_parameter_cannot_be_set() -> None:
    head = HEAD + "[parameters]\npause_s = 30\n"
    assert refusal(KILL, head, pause="6") == (
        "some.toml: there is no parameter 'pause' to set (it has pause_s); did you mean 'pause_s'?"
    )
    assert refusal(KILL, head, pause_s="soon") == "some.toml: parameter pause_s must be a number, not 'soon'"
    assert "it has none" in refusal(KILL, HEAD, pause="6")


def test_unreadable_file_is_reported_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        load_scenario(tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="it is not text"):
        load_scenario(tmp_path / "binary.toml")
