"""Commands show every configured value, also on 80 columns, and a command without effect does not report success."""

from __future__ import annotations

import os
import pty
import select

import pytest
from cli_world import ENVIRONMENT, Up, forks, one_sentence, run

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def topic(up: Up) -> str:
    """Create a topic with three records in partition 1 and its own configuration."""
    configs = ["--config", "retention.ms=5000000", "--set", "segment.ms=600000"]
    created = run("topic", "create", "state", "-p", "2", "-r", "3", *configs, "--bootstrap", up.bootstrap)
    assert created.code == 0, created.err
    assert run("produce", "state", "--partition", "1", "--bootstrap", up.bootstrap, stdin="a\nb\nc\n").code == 0
    return "state"


def at_terminal(up: Up, *words: str, columns: int = 80) -> list[str]:
    """Return the lines that a command prints at a terminal of this width."""
    master, slave = pty.openpty()
    environment = ENVIRONMENT | {"STRANDLINE_BOOTSTRAP": up.bootstrap, "COLUMNS": str(columns)}
    data = b""
    try:
        with open(os.devnull) as nothing:
            process = forks().start(words, environment, (nothing.fileno(), slave, slave), folder=up.folder.parent)
        end = b"\0end"
        while end not in data:  # the other end stays open here, so that what was written is not lost when the process ends
            if select.select([master], [], [], 0.05)[0]:
                data += os.read(master, 65536)
            elif process.poll() is not None:
                os.write(slave, end)  # a busy kernel may deliver the last lines later; they come before this mark
    finally:
        os.close(master)
        os.close(slave)
    return data[: data.index(end)].decode().replace("\r\n", "\n").splitlines()


# -- reading back


def test_a_topic_is_described_with_offsets_sizes_and_the_source_of_each_value(up: Up, topic: str) -> None:
    (described,) = run("topic", "describe", topic, "--json", "--bootstrap", up.bootstrap).json()["topics"]
    first, second = described["partitions"]
    assert (first["start_offset"], first["end_offset"]) == (0, 0)
    assert (second["start_offset"], second["end_offset"]) == (0, 3)
    assert set(second["size_bytes_by_broker"]) == {"1", "2", "3"}
    assert second["size_bytes_by_broker"][str(second["leader"])] > 0
    sources = described["config_sources"]
    assert (described["configs"]["retention.ms"], sources["retention.ms"]) == ("5000000", "topic")
    assert (sources["segment.ms"], sources["min.insync.replicas"], sources["max.message.bytes"]) == ("topic", "static", "default")
    shown = run("topic", "describe", topic, "--bootstrap", up.bootstrap).out
    assert "retention.ms=5000000 (set on the topic)" in shown
    assert "min.insync.replicas=2 (the broker's file)" in shown
    assert "max.message.bytes" not in shown


def test_the_configuration_of_a_topic_and_of_a_broker_is_described(up: Up, topic: str) -> None:
    found = run("config", "describe", "topic", topic, "--json", "--bootstrap", up.bootstrap).json()
    assert {"name": "retention.ms", "value": "5000000", "source": "topic"}.items() <= next(
        c.items() for c in found["configs"] if c["name"] == "retention.ms"
    )
    for broker in "123":  # the request goes to this broker, whichever one the bootstrap names
        found = run("config", "describe", "broker", broker, "--json", "--bootstrap", up.bootstrap.split(",")[0]).json()
        assert next(c["value"] for c in found["configs"] if c["name"] == "node.id") == broker
    assert "40 keys have their defaults" not in run("config", "describe", "broker", "1", "--all", "--bootstrap", up.bootstrap).out


@pytest.mark.parametrize(
    ("words", "word"),
    [(("broker", "9"), "1, 2, 3"), (("broker", "x"), "'x'"), (("topic", "missing"), "missing")],
    ids=["no broker", "no id", "no topic"],
)
def test_the_configuration_of_an_unknown_name_is_one_sentence(up: Up, words: tuple[str, str], word: str) -> None:
    outcome = run("config", "describe", *words, "--bootstrap", up.bootstrap)
    assert outcome.code in (1, 2)
    assert word in one_sentence(outcome)


# -- no success for nothing


def test_deleting_a_missing_topic_does_not_report_success(up: Up) -> None:
    outcome = run("topic", "delete", "nope", "--if-exists", "--yes", "--bootstrap", up.bootstrap)
    assert outcome.code == 0
    assert "nothing was deleted" in one_sentence(outcome)
    assert run("topic", "delete", "nope", "--yes", "--bootstrap", up.bootstrap).code == 1


def test_internal_topic_is_deleted_only_on_purpose(up: Up) -> None:
    """The groups' committed offsets would be gone with one command."""
    words = ("topic", "delete", "__transaction_state", "--yes", "--bootstrap", up.bootstrap)
    refused = run(*words)
    assert refused.code == 2
    assert "the transactions of all transactional ids; --internal deletes it all the same" in one_sentence(refused)
    assert "there is no topic" in one_sentence(run(*words, "--internal"))


def test_an_existing_topic_is_not_reported_as_created(up: Up, topic: str) -> None:
    again = run("topic", "create", topic, "-p", "7", "--if-not-exists", "--bootstrap", up.bootstrap)
    assert again.code == 0
    assert again.out == f"{topic} exists already and was left as it is: 2 partitions, replication factor 3\n"
    words = ("topic", "create", topic, "--if-not-exists", "--json", "--bootstrap", up.bootstrap)
    assert run(*words).json()["created"] is False


def test_a_filter_without_a_match_is_reported(up: Up, topic: str) -> None:
    outcome = run("topic", "describe", topic, "--unavailable", "--bootstrap", up.bootstrap)
    assert (outcome.code, outcome.out, outcome.err) == (0, "no partition matches --unavailable\n", "")
    outcome = run("topic", "producers", topic, "--partition", "0", "--bootstrap", up.bootstrap)
    assert (outcome.code, one_sentence(outcome)) == (0, f"strandline: {topic}: no idempotent producer is known")


def test_an_unknown_configuration_key_is_an_error() -> None:
    outcome = run("config", "keys", "zzz")
    assert outcome.code == 1
    assert "'zzz'" in one_sentence(outcome)


def test_an_empty_segment_is_reported(tmp_path: os.PathLike[str]) -> None:
    path = os.path.join(tmp_path, "0.log")
    open(path, "w").close()
    outcome = run("log", "dump", path)
    assert (outcome.code, "no batches" in one_sentence(outcome)) == (0, True)


# -- 80 columns


@pytest.mark.parametrize(
    "words",
    [
        ("topic", "list"),
        ("topic", "describe", "state"),
        ("topic", "producers", "state"),
        ("topic", "offsets", "state"),
        ("topic", "analyze", "state"),
        ("log-dirs", "describe", "--partitions"),
        ("features", "describe"),
        ("quorum", "describe"),
        ("cluster", "describe"),
        ("config", "keys"),
        ("config", "describe", "broker", "1", "--all"),
        ("config", "describe", "topic", "state"),
        ("config", "get", "cluster", "--all"),
        ("config", "diff", "broker", "1", "2"),
        ("chaos", "list", os.path.abspath("deploy/chaos")),
        ("simulate", "--list"),
    ],
    ids=" ".join,
)
def test_a_table_fits_on_80_columns_and_breaks_no_word(up: Up, topic: str, words: tuple[str, ...]) -> None:
    narrow, wide = at_terminal(up, *words), at_terminal(up, *words, columns=1000)
    assert all(len(line) <= 80 or len(line.split()) == 2 for line in narrow), "only a name alone may be longer"
    assert len(wide) > 2, wide
    whole = {piece for line in wide for piece in pieces(line)}
    assert {piece for line in narrow if not line.startswith("(not shown") for piece in pieces(line)} <= whole


def pieces(line: str) -> list[str]:
    """Return the words of a table, without rules, and without numbers, which differ per call. Long lists break after commas."""
    words = (word for word in line.split() if "─" not in word and not word.isdigit())
    return [piece for word in words for piece in word.split(",") if piece]


def test_nodes_are_listed_on_80_columns_with_short_paths(up: Up) -> None:
    lines = at_terminal(up, "node", "list", "--data", str(up.folder))
    assert max(map(len, lines)) <= 80
    wide = at_terminal(up, "node", "list", "--wide", "--data", str(up.folder))
    assert any("./data/broker-1/data" in line for line in wide)


def test_wide_shows_every_column(up: Up, topic: str) -> None:
    assert "id" in at_terminal(up, "topic", "list", "--wide")[1].split()
    assert "id" not in at_terminal(up, "topic", "list")[1].split()
