"""`-o` prints each view as a table, as JSON, as YAML or as plain rows; `--watch` repeats it."""

from __future__ import annotations

import json

import pytest
import typer
import yaml
from cli_world import Up, one_sentence, run
from terminal import CTRL_C, at_a_terminal
from test_cli_examples import LEAVES

from strandline.cli.command import with_watch_value
from strandline.cli.output import Form, Table, View, rendered, show
from strandline.cli.watch import fitted

COLUMNS = ("topic", "rack", "replicas", "epoch")
ROWS = [("orders", None, (1, 2), 7), ("a\tb\\c\nd", None, (), 8)]
VIEW = View({"topics": [{"topic": "orders", "rack": None}]}, [Table(COLUMNS, ROWS, more=("epoch",)), "two topics"])


def test_table_is_for_people_and_wide_has_more_columns() -> None:
    assert rendered(VIEW, Form.table, 80).splitlines()[1].split() == ["topic", "replicas"]
    assert rendered(VIEW, Form.wide, 80).splitlines()[1].split() == ["topic", "replicas", "epoch"]
    assert rendered(VIEW, Form.table, 80).endswith("two topics")


def test_sentences_are_wrapped_between_words() -> None:
    """A terminal would break them anywhere, and a broken number is misread."""
    text = "the lag of this group is 22000603 records in six partitions of orders"
    assert rendered(View({}, [text]), Form.table, 30).splitlines() == [
        "the lag of this group is",
        "22000603 records in six",
        "partitions of orders",
    ]
    assert rendered(View({}, [text]), Form.wide, 30) == text


def test_json_and_yaml_print_the_same_document() -> None:
    assert json.loads(rendered(VIEW, Form.json, None)) == VIEW.document
    assert yaml.safe_load(rendered(VIEW, Form.yaml, None)) == VIEW.document
    assert "\n" not in rendered(VIEW, Form.json, None)


def test_yaml_documents_follow_each_other() -> None:
    """`--watch` and `log dump` print several."""
    twice = "\n".join([rendered(VIEW, Form.yaml, None)] * 2)
    assert list(yaml.safe_load_all(twice)) == [VIEW.document] * 2


@pytest.mark.parametrize("value", ["no", "0123", "1e3", "null", "", "a: b", "x" * 300, "\u2028", "2026-01-01"])
def test_yaml_keeps_text_as_text(value: str) -> None:
    """Unquoted, YAML would read some of these as a boolean, a number or a date."""
    assert yaml.safe_load(rendered(View({"value": value}), Form.yaml, None)) == {"value": value}


def test_plain_rows_keep_the_place_of_each_column() -> None:
    """A table hides a column without values; a script counts on the third column being the third."""
    assert rendered(VIEW, Form.plain, 80).split("\n") == ["orders\t\t1,2\t7", "a\\tb\\\\c\\nd\t\t\t8"]


def test_plain_shows_sentences_only_without_a_table() -> None:
    assert rendered(View({}, ["one", "two"]), Form.plain, None) == "one\ntwo"
    assert rendered(View({}, [VIEW.parts[0], VIEW.parts[0]]), Form.plain, None).count("\n\n") == 1


def test_remarks_and_the_exit_code_follow_what_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as exit:
        show(View({"complete": False}, [], ["broker 3 did not answer"], 1), Form.json)
    assert exit.value.exit_code == 1
    out, err = capsys.readouterr()
    assert (json.loads(out), err) == ({"complete": False}, "strandline: broker 3 did not answer\n")


NO_TABLES = {"produce", "consume", "cat", "top"}
"""They print or read records, or have the whole screen."""


@pytest.mark.parametrize("path", LEAVES)
def test_every_command_with_json_has_every_form(path: str) -> None:
    options = {option for parameter in LEAVES[path].params for option in parameter.opts}
    if path not in NO_TABLES and "--json" in options:
        assert {"-o", "--output", "--wide"} <= options


@pytest.mark.parametrize("words", ["chaos list", "config keys retention", "context show"])
def test_every_form_of_a_read_is_printed(words: str) -> None:
    """Commands that need no cluster; all others are polled as JSON in `test_cli_partial.py`."""
    for form in Form:
        outcome = run(*words.split(), "-o", form)
        assert (outcome.code, outcome.err) == (0, "")
        if form is Form.json:
            assert outcome.json()
        elif form is Form.yaml:
            assert yaml.safe_load(outcome.out)
        elif form is Form.plain:
            assert "─" not in outcome.out


@pytest.mark.processes
@pytest.mark.parametrize(
    "words",
    ["topic list", "topic describe", "cluster describe", "quorum describe", "features describe", "log-dirs describe",
     "config get cluster", "config diff cluster", "group list", "recover --plan", "reassign --progress", "health --cluster"],
)  # fmt: skip
def test_read_of_a_cluster_has_the_same_facts_in_yaml_and_rows_in_plain(up: Up, words: str) -> None:
    as_yaml = run(*words.split(), "-o", "yaml", "-b", up.bootstrap)
    as_json = run(*words.split(), "-o", "json", "-b", up.bootstrap)
    assert yaml.safe_load(as_yaml.out).keys() == as_json.json().keys()
    plain = run(*words.split(), "-o", "plain", "-b", up.bootstrap)
    assert plain.code == as_yaml.code == as_json.code
    assert len({line.count("\t") for line in plain.out.splitlines() if line}) <= 2, "a row has as many values as the others"


def test_short_forms_contradict_no_other_form() -> None:
    assert run("chaos", "list", "--json", "-o", "json").json() == run("chaos", "list", "-o", "json").json()
    assert "--json and -o yaml exclude each other" in one_sentence(run("chaos", "list", "--json", "-o", "yaml"))
    assert "--json and --wide exclude each other" in one_sentence(run("chaos", "list", "--json", "--wide"))
    assert run("chaos", "list", "-o", "xml").code == 2


# -- watch --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--watch", "orders"], ["--watch=2", "orders"]),
        (["orders", "-w"], ["orders", "--watch=2"]),
        (["-w", "0.5", "orders"], ["--watch=0.5", "orders"]),
        (["--watch=5"], ["--watch=5"]),
        (["--watch", "--json"], ["--watch=2", "--json"]),
    ],
    ids=str,
)
def test_watch_needs_no_number(words: list[str], expected: list[str]) -> None:
    assert with_watch_value(words) == expected


def test_watched_lines_fit_the_terminal() -> None:
    assert fitted(["a", "b", "c"], 3) == ["a", "b", "c"]
    assert fitted(["a", "b", "c", "d"], 3) == ["a", "b", "(2 more lines)"]


def test_watch_goes_on_although_no_broker_answers() -> None:
    """The cluster may return."""
    with at_a_terminal("topic", "list", "--watch", "0.1", "-b", "127.0.0.1:1") as terminal:
        for _ in range(3):
            terminal.screen = ""
            terminal.wait_for("every 0.1 s")
            terminal.wait_for("no broker could be reached")
        terminal.type(CTRL_C)
        assert terminal.wait_for_end(5) == 130


@pytest.mark.processes
def test_watch_replaces_the_screen_until_ctrl_c(up: Up) -> None:
    with at_a_terminal("cluster", "describe", "-w", "0.1", "-b", up.bootstrap) as terminal:
        for _ in range(3):
            terminal.screen = ""
            terminal.wait_for("\x1b[H\x1b[2J")
            terminal.wait_for("active controller 101")
        terminal.type(CTRL_C)
        assert terminal.wait_for_end(5) == 130


def test_watch_takes_no_instant() -> None:
    assert "0.1 seconds or more" in one_sentence(run("topic", "list", "--watch", "0"))
