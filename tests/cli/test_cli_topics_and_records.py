"""The everyday commands on a running cluster: topics, records, brokers, quorum, elections, a benchmark."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from collections.abc import Callable

import pytest
from cli_world import Outcome, Up, one_sentence, run, wait_until
from terminal import at_a_terminal

from strandline import Producer
from strandline.cli.topic_trim import _plan, _question
from strandline.client import OffsetAndTimestamp, PartitionDescription, TopicDescription, TopicPartition

pytestmark = pytest.mark.processes

Call = Callable[..., Outcome]


@pytest.fixture
def call(up: Up) -> Call:
    """Run `strandline ...` on the cluster, and check that it succeeds."""

    def call(*arguments: str, stdin: str = "") -> Outcome:
        outcome = run(*arguments, stdin=stdin, env={"STRANDLINE_BOOTSTRAP": up.bootstrap})
        assert outcome.code == 0, outcome.err
        return outcome

    return call


@pytest.fixture
def topic(call: Call, request: pytest.FixtureRequest) -> str:
    """Create a topic with three partitions for one test."""
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name)
    call("topic", "create", name, "--partitions", "3", "--replication-factor", "3")
    return name


def consumed(call: Call, topic: str, *arguments: str) -> list[str]:
    return call("consume", topic, "--exit-at-end", *arguments).out.splitlines()


# -- topics


def test_a_topic_is_created_listed_described_and_deleted(call: Call, topic: str) -> None:
    listed = {t["topic"]: t for t in call("topic", "list", "--json").json()["topics"]}
    assert (listed[topic]["partitions"], listed[topic]["replication_factor"], listed[topic]["unavailable"]) == (3, 3, 0)
    assert topic in call("topic", "list").out
    (described,) = call("topic", "describe", topic, "--json").json()["topics"]
    assert [p["partition"] for p in described["partitions"]] == [0, 1, 2]
    assert all(p["leader"] in (1, 2, 3) and sorted(p["replicas"]) == [1, 2, 3] for p in described["partitions"])
    assert described["configs"]["min.insync.replicas"] == "2"
    call("topic", "delete", topic, "--yes")
    wait_until(lambda: topic not in call("topic", "list").out, "the topic is gone")


def _starts(call: Call, topic: str) -> list[int]:
    (described,) = call("topic", "describe", topic, "--json").json()["topics"]
    return [p["start_offset"] for p in described["partitions"]]


def test_trim_deletes_records_below_the_offset(call: Call, topic: str) -> None:
    call("produce", topic, "--partition", "1", stdin="a\nb\nc\n")
    call("produce", topic, "--partition", "2", stdin="d\n")
    trimmed = call("topic", "trim", topic, "--before", "2", "--partition", "1", "--yes", "--json").json()
    assert trimmed == {"topic": topic, "partitions": [{"partition": 1, "start": 2, "error": None, "message": None}]}
    assert _starts(call, topic) == [0, 2, 0]
    assert sorted(consumed(call, topic)) == ["c", "d"]
    assert "trimmed" in call("topic", "trim", topic, "--before", "end", "--yes").out
    assert _starts(call, topic) == [0, 3, 1]
    assert consumed(call, topic) == []


def test_trim_above_the_end_is_an_error_of_the_partition(call: Call, topic: str, up: Up) -> None:
    call("produce", topic, "--partition", "1", stdin="a\nb\n")
    refused = run("topic", "trim", topic, "--before", "2", "--yes", "--json", env={"STRANDLINE_BOOTSTRAP": up.bootstrap})
    assert refused.code == 1
    assert [p["error"] for p in refused.json()["partitions"]] == ["OFFSET_OUT_OF_RANGE", None, "OFFSET_OUT_OF_RANGE"]
    assert _starts(call, topic) == [0, 2, 0]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--before", "end"), "--yes"),
        (("--before", "-1", "--yes"), "'end'"),
        (("--before", "1", "--partition", "3", "--yes"), "no partition 3"),
    ],
)
def test_trim_with_wrong_arguments_deletes_nothing(
    call: Call, topic: str, up: Up, arguments: tuple[str, ...], reason: str
) -> None:
    """Without a terminal it does not ask: it refuses unless --yes is given."""
    call("produce", topic, "--partition", "0", stdin="a\n")
    refused = run("topic", "trim", topic, *arguments, env={"STRANDLINE_BOOTSTRAP": up.bootstrap})
    assert refused.code == 2
    assert reason in one_sentence(refused)
    assert _starts(call, topic) == [0, 0, 0]


class SilentAdmin:
    """A topic with these partitions, whose logs have the offsets 1 to 4; the leaders of `silent` do not answer."""

    def __init__(self, partitions: int, silent: set[int]) -> None:
        self.partitions = partitions
        self.silent = silent

    async def __aenter__(self) -> SilentAdmin:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def describe_topics(self, names: list[str]) -> list[TopicDescription]:
        partitions = [PartitionDescription(p, 1, 0, 0, (1,), (1,), (), ()) for p in range(self.partitions)]
        return [TopicDescription(names[0], b"", partitions)]

    async def list_offsets(
        self, wanted: dict[TopicPartition, int], *, timeout_ms: float
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        offsets = {-2: 1, -1: 5}
        return {tp: OffsetAndTimestamp(offsets[at], -1) for tp, at in wanted.items() if tp.partition not in self.silent}


@pytest.mark.parametrize(
    ("before", "partitions", "silent", "says"),
    [
        (2, 1, set(), "This deletes 1 record of orders in 1 partition, for good."),
        (-1, 2, set(), "This deletes 8 records of orders in 2 partitions, for good."),
        (-1, 2, {1}, "This deletes at least 4 records of orders in 2 partitions, for good (no leader answered for 1 partition)."),
        (
            -1,
            2,
            {0, 1},
            "This deletes at least 0 records of orders in 2 partitions, for good (no leader answered for 2 partitions).",
        ),
    ],
)
async def test_question_counts_the_partitions_without_an_answer(
    monkeypatch: pytest.MonkeyPatch, before: int, partitions: int, silent: set[int], says: str
) -> None:
    """Their records are deleted, too, if a leader answers when the command is confirmed. One broker may lead several of these
    partitions, and others may have no leader, so the question counts partitions."""
    monkeypatch.setattr("strandline.client.Admin", lambda **_: SilentAdmin(partitions, silent))
    assert _question("orders", await _plan("h:1", "orders", None, before)) == says


@pytest.mark.parametrize(("key", "code", "left"), [("n", 1, ["a", "b", "late"]), ("y", 0, ["late"])])
def test_trim_asks_at_a_terminal(call: Call, topic: str, up: Up, key: str, code: int, left: list[str]) -> None:
    """Records that are written while the command waits for an answer stay."""
    call("produce", topic, "--partition", "0", stdin="a\nb\n")
    with at_a_terminal("topic", "trim", topic, "--before", "end", env={"STRANDLINE_BOOTSTRAP": up.bootstrap}) as terminal:
        terminal.wait_for("This deletes 2 records")
        call("produce", topic, "--partition", "0", stdin="late\n")
        terminal.type(f"{key}\n")
        assert terminal.wait_for_end(20) == code
    assert consumed(call, topic) == left


def test_the_producers_of_a_topic_are_shown_with_name_work_epoch_and_last_row(call: Call, topic: str, up: Up) -> None:
    async def write() -> None:
        async with Producer(bootstrap_servers=up.bootstrap, producer_name="sink", producer_work_epoch=4) as producer:
            for _ in range(3):
                await producer.send_and_wait(topic, b"row", partition=1)

    asyncio.run(write())
    places = call("topic", "producers", topic, "--json").json()["partitions"]
    assert [(p["partition"], len(p["producers"])) for p in places] == [(0, 0), (1, 1), (2, 0)]
    (known,) = places[1]["producers"]
    assert (known["name"], known["work_epoch"], known["producer_epoch"], known["last_sequence"]) == ("sink", 4, 0, 2)
    assert known["last_offset"] < places[1]["high_watermark"]
    shown = call("topic", "producers", topic, "--partition", "1").out
    assert re.search(r"sink +4 +0 +2 +2 .* committed", shown)
    refused = run("topic", "producers", "missing", "--bootstrap", up.bootstrap)
    assert (refused.code, "missing" in refused.err) == (1, True)


def test_the_fencing_token_of_a_partition_is_shown(call: Call, topic: str, up: Up) -> None:
    async def write() -> None:
        async with Producer(bootstrap_servers=up.bootstrap, fencing_token=12) as producer:
            await producer.send_and_wait(topic, b"row", partition=1)

    asyncio.run(write())
    places = call("topic", "producers", topic, "--json").json()["partitions"]
    assert [(p["fencing_token"], len(p["producers"])) for p in places] == [(None, 0), (12, 1), (None, 0)]
    outcome = call("topic", "producers", topic)
    assert f"{topic}-1 has fencing token 12" in outcome.out + outcome.err


def test_creating_an_existing_topic_needs_if_not_exists(call: Call, topic: str, up: Up) -> None:
    again = run("topic", "create", topic, "--bootstrap", up.bootstrap)
    assert again.code == 1
    assert topic in again.err
    call("topic", "create", topic, "--if-not-exists")


def test_replicas_can_be_assigned_by_hand(call: Call) -> None:
    call("topic", "create", "by-hand", "--replica-assignment", "3:1,1:2")
    (described,) = call("topic", "describe", "by-hand", "--json").json()["topics"]
    assert [p["replicas"] for p in described["partitions"]] == [[3, 1], [1, 2]]
    assert [p["leader"] for p in described["partitions"]] == [3, 1]


def test_partitions_are_added_and_configs_changed(call: Call, topic: str) -> None:
    call("topic", "alter", topic, "--partitions", "5", "--set", "retention.ms=60000")
    (described,) = call("topic", "describe", topic, "--json").json()["topics"]
    assert len(described["partitions"]) == 5
    assert described["configs"]["retention.ms"] == "60000"
    call("topic", "alter", topic, "--unset", "retention.ms")
    (described,) = call("topic", "describe", topic, "--json").json()["topics"]
    assert described["configs"]["retention.ms"] == "604800000"


def test_the_filters_find_nothing_in_a_healthy_cluster(call: Call, topic: str) -> None:
    for flag in ("--under-replicated", "--unavailable", "--under-min-isr"):
        assert call("topic", "describe", topic, flag, "--json").json()["topics"] == []


def test_a_minimum_above_the_number_of_replicas_is_shown_as_capped(call: Call) -> None:
    """As in Kafka, acks=all then needs all replicas, and the partition is not under its minimum."""
    call("topic", "create", "single", "--replica-assignment", "1,2", "--set", "min.insync.replicas=2")
    note = "single: min.insync.replicas=2 is capped by the number of replicas: 1 in sync is enough for acks=all"
    assert note in call("topic", "describe", "single").out.splitlines()
    assert call("topic", "describe", "single", "--under-min-isr", "--json").json()["topics"] == []
    call("topic", "alter", "single", "--set", "min.insync.replicas=1")
    assert "capped" not in call("topic", "describe", "single").out


def test_the_filters_find_under_replicated_partitions(call: Call, topic: str, up: Up) -> None:
    """A script learns the result from exit code 3."""
    assert run("node", "stop", "broker-3", "--data", str(up.folder)).code == 0
    try:
        found = run("topic", "describe", topic, "--under-replicated", "--json", "--bootstrap", up.bootstrap)
        assert found.code == 3
        (described,) = found.json()["topics"]
        assert all(3 not in p["isr"] for p in described["partitions"])
        assert run("cluster", "describe", "--bootstrap", up.bootstrap).code == 3
    finally:
        assert run("node", "start", "broker-3", "--data", str(up.folder)).code == 0

    def healthy() -> bool:
        return run("topic", "describe", topic, "--under-replicated", "--bootstrap", up.bootstrap).code == 0

    wait_until(healthy, "broker 3 is back in every ISR")
    wait_until(lambda: run("cluster", "describe", "--bootstrap", up.bootstrap).code == 0, "broker 3 is unfenced")


# -- records


def bytes_out(up: Up, topic: str) -> int:
    """Return the bytes that the brokers sent to consumers of the topic."""
    wanted = f'kafka_server_brokertopicmetrics_bytesout_total{{topic="{topic}"}} '
    lines = []
    for node in up.ready["nodes"]:
        if node["role"] == "broker":
            with urllib.request.urlopen(f"http://{node['http']}/metrics", timeout=10) as page:
                lines += page.read().decode().splitlines()
    return sum(int(float(line.removeprefix(wanted))) for line in lines if line.startswith(wanted))


def test_each_byte_is_fetched_once(call: Call, topic: str, up: Up) -> None:
    """The look-up of the start offset takes a moment, in which the consumer must not fetch from another offset."""
    call("produce", topic, stdin="".join(f"{number:0100}\n" for number in range(2000)))
    assert consumed(call, topic, "--from", "end") == []
    assert bytes_out(up, topic) == 0
    assert len(consumed(call, topic, "--from", "beginning")) == 2000
    once = bytes_out(up, topic)
    assert 2000 * 100 < once < 2000 * 150
    assert len(consumed(call, topic, "--from", "beginning")) == 2000
    assert bytes_out(up, topic) == 2 * once


def test_lines_become_records(call: Call, topic: str) -> None:
    call("produce", topic, "--key-separator", ":", stdin="alice:1 tea\nbob:2 coffee\nno key\n")
    lines = consumed(call, topic, "--from", "beginning", "--format", r"%k=%v\n")
    assert sorted(lines) == ["=no key", "alice=1 tea", "bob=2 coffee"]
    assert sorted(r["value"] for r in call("consume", topic, "--from", "beginning", "--exit-at-end", "--json").lines()) == [
        "1 tea",
        "2 coffee",
        "no key",
    ]


def test_the_format_supports_every_field(call: Call, topic: str) -> None:
    call("produce", topic, "--partition", "1", "--key-separator", ":", stdin="k:v\n")
    (line,) = consumed(call, topic, "--from", "beginning", "--format", r"%t|%p|%o|%e|%k|%v|%h|%%|\t|\n")
    assert line == f"{topic}|1|0|0|k|v||%|\t|"


@pytest.mark.parametrize(
    ("start", "expected"),
    [("beginning", ["a", "b", "c", "d"]), ("2", ["c", "d"]), ("-1", ["d"]), ("-3", ["b", "c", "d"]), ("end", []), ("99", [])],
)
def test_reading_starts_at_the_given_offset(call: Call, up: Up, start: str, expected: list[str]) -> None:
    call("topic", "create", "starts", "--partitions", "1", "--replication-factor", "3", "--if-not-exists")
    if not consumed(call, "starts", "--from", "beginning"):
        call("produce", "starts", stdin="a\nb\nc\nd\n")
    assert consumed(call, "starts", "--from", start) == expected


def test_the_count_ends_the_reading(call: Call, topic: str) -> None:
    call("produce", topic, "--partition", "0", stdin="a\nb\nc\n")
    assert call("consume", topic, "--from", "beginning", "-n", "2").out.splitlines() == ["a", "b"]


@pytest.mark.parametrize("acks", ["all", "1", "0"])
def test_every_level_of_acks_delivers(call: Call, acks: str) -> None:
    call("topic", "create", f"acks-{acks}", "--partitions", "1", "--replication-factor", "3")
    call("produce", f"acks-{acks}", "--acks", acks, stdin="a\n")
    # With acks=0 no response says when the record is in the log.
    wait_until(lambda: consumed(call, f"acks-{acks}", "--from", "beginning") == ["a"], "the record can be read")


def test_a_line_of_raw_bytes_arrives_unchanged(up: Up, call: Call, topic: str) -> None:
    import subprocess

    from cli_world import COMMAND, ENVIRONMENT

    raw = bytes(b for b in range(256) if b != 10)
    subprocess.run([*COMMAND, "produce", topic, "--bootstrap", up.bootstrap], input=raw, check=True, env=ENVIRONMENT)
    arguments = ["consume", topic, "--from", "beginning", "--exit-at-end", "--format", "%v", "--bootstrap", up.bootstrap]
    assert subprocess.run([*COMMAND, *arguments], capture_output=True, check=True, env=ENVIRONMENT).stdout == raw


def test_a_closed_reader_is_no_error(up: Up, call: Call, topic: str) -> None:
    """`strandline consume ... | head -1`."""
    import subprocess

    from cli_world import COMMAND, ENVIRONMENT

    call("produce", topic, stdin="".join(f"{i} {'x' * 100}\n" for i in range(20_000)))
    command = f"{COMMAND[0]} consume {topic} --from beginning --exit-at-end --bootstrap {up.bootstrap} | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=ENVIRONMENT, check=True, timeout=30)
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) == 1


# -- cluster


def test_the_cluster_is_described(call: Call) -> None:
    cluster = call("cluster", "describe", "--json").json()
    assert cluster["controller_id"] == 101
    assert [b["broker_id"] for b in cluster["brokers"]] == [1, 2, 3]
    assert not any(b["is_fenced"] for b in cluster["brokers"])
    assert "active controller 101" in call("cluster", "describe").out


def test_the_quorum_is_described(call: Call) -> None:
    quorum = call("quorum", "describe", "--json").json()
    assert quorum["leader_id"] == 101
    assert [v["replica_id"] for v in quorum["voters"]] == [101]
    assert sorted(o["replica_id"] for o in quorum["observers"]) == [1, 2, 3]
    assert "leader 101" in call("quorum", "describe").out


def test_the_level_of_the_metadata_is_described_and_checked(call: Call, up: Up) -> None:
    """A new cluster has the newest level already. A level that no node knows is refused in one sentence."""
    described = call("features", "describe", "--json").json()
    assert (described["feature"], described["level"]) == ("metadata.version", 2)
    assert described["brokers"] == [{"broker_id": n, "min_level": 0, "max_level": 2} for n in (1, 2, 3)]
    table = call("features", "describe").out
    assert "0 to 2" in table
    assert "metadata.version has level 2" in table
    assert call("features", "upgrade").out == "metadata.version has level 2 already\n"
    upgraded = call("features", "upgrade", "--level", "2", "--dry-run", "--json").json()
    assert upgraded == {"feature": "metadata.version", "previous_level": 2, "level": 2, "dry_run": True}
    for level, words in (("0", "cannot be lowered from 2 to 0"), ("9", "supports metadata.version 0 to 2, not 9")):
        refused = run("features", "upgrade", "--level", level, "--bootstrap", up.bootstrap)
        assert refused.code == 1
        assert words in one_sentence(refused)


def test_the_preferred_leader_is_elected_again(call: Call, up: Up) -> None:
    """An election is requested before the leaders would return by themselves."""
    call("topic", "create", "preferred", "--replica-assignment", "2:1:3")
    assert call("elect", "preferred", "0", "--preferred", "--json").json()["elected"] is False
    assert run("node", "stop", "broker-2", "--data", str(up.folder)).code == 0
    assert run("node", "start", "broker-2", "--data", str(up.folder)).code == 0

    def in_sync() -> bool:
        """The exit code is 1 as long as broker 2 does not answer for its part."""
        described = run("topic", "describe", "preferred", "--json", "--bootstrap", up.bootstrap)
        return described.code == 0 and 2 in described.json()["topics"][0]["partitions"][0]["isr"]

    wait_until(in_sync, "broker 2 is in sync again")
    elected = call("elect", "preferred", "0", "--preferred", "--json").json()
    assert elected == {"topic": "preferred", "partition": 0, "leader": 2, "elected": True}
    (described,) = call("topic", "describe", "preferred", "--json").json()["topics"]
    assert described["partitions"][0]["leader"] == 2


# -- log and bench


def test_the_segments_of_a_running_broker_can_be_dumped(call: Call, topic: str, up: Up) -> None:
    call("produce", topic, "--partition", "0", stdin="a\nb\n")
    (described,) = call("topic", "describe", topic, "--json").json()["topics"]
    leader = described["partitions"][0]["leader"]
    segment = up.folder / f"broker-{leader}" / "data" / f"{topic}-0" / f"{0:020}.log"
    batches = call("log", "dump", str(segment), "--records", "--json").lines()
    assert [r["value"] for batch in batches for r in batch["records"]] == ["a", "b"]
    assert all(batch["crc_ok"] for batch in batches)


def test_the_metadata_log_can_be_dumped(call: Call, up: Up) -> None:
    segment = up.folder / "controller-101" / "data" / "__cluster_metadata-0" / f"{0:020}.log"
    batches = call("log", "dump", str(segment), "--records", "--json").lines()
    assert batches[0]["is_control"]
    assert "LeaderChange" in batches[0]["records"][0]["control"]


@pytest.mark.parametrize("load", ["produce", "consume", "latency"])
def test_a_benchmark_reports_its_figures(call: Call, load: str) -> None:
    figures = call("bench", load, "--topic", "bench-small", "--records", "2000", "--record-size", "50", "--json").json()
    assert {"records_per_s", "mb_per_s", "p50_ms", "p99_ms", "max_gap_ms"} <= figures.keys()
    assert figures["records"] >= 2000
    assert figures["records_per_s"] > 0
    assert figures["p50_ms"] <= figures["p99_ms"]


def test_a_benchmark_compresses_values_that_have_words(call: Call, up: Up) -> None:
    """Random bytes would make every codec look useless."""
    load = ["--topic", "bench-lz4", "--records", "3000", "--record-size", "100", "--linger-ms", "50", "--compression", "lz4"]
    assert call("bench", "produce", *load, "--json").json()["records"] == 3000
    batches = [
        batch
        for folder in (up.folder / "broker-1" / "data").glob("bench-lz4-*")
        for batch in call("log", "dump", str(folder / f"{0:020}.log"), "--json").lines()
    ]
    large = [batch for batch in batches if batch["count"] > 100]
    assert large
    assert {batch["compression"] for batch in large} == {"lz4"}
    assert all(batch["size"] < 60 * batch["count"] for batch in large)
