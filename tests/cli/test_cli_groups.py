"""`strandline group` and `consume --group`: groups, their lag and their offsets, as Kafka's users know them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
import typer
from cli_world import ENVIRONMENT, Outcome, Up, one_sentence, run, wait_until
from terminal import at_a_terminal

from strandline.cli.group_csv import csv_text, parse_csv
from strandline.cli.group_seek import Current, Shift, parse_target, planned, seek
from strandline.cli.group_state import GroupState, assignment_text
from strandline.cli.start import BeforeEnd, Beginning, End, Offset, Time
from strandline.client import (
    GroupDescription,
    GroupLag,
    GroupMemberDescription,
    GroupOffsetResult,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    PartitionLag,
    RequestFailed,
    TopicPartition,
)
from strandline.protocol.errors import ErrorCode, UsageError

FIRST, SECOND, THIRD = (TopicPartition("orders", number) for number in range(3))


def lag_of(offset: int, end: int | None) -> PartitionLag:
    return PartitionLag(OffsetAndMetadata(offset), end, None if end is None else end - offset)


def state() -> GroupState:
    member = GroupMemberDescription("m-1", None, "till", "10.0.0.7", [FIRST, THIRD])
    description = GroupDescription("billing", "Stable", "consumer", 2, "uniform", 4, 4, [member])
    return GroupState(description, GroupLag({FIRST: lag_of(3, 10), SECOND: lag_of(5, None)}))


def test_rows_have_kafkas_columns_for_each_partition() -> None:
    """A partition has a row if it has an offset or an owner; what is missing is a dash, as Kafka's tool prints it."""
    assert [row[:9] for row in state().offset_rows()] == [
        ("billing", "orders", 0, 3, 10, 7, "m-1", "10.0.0.7", "till"),
        ("billing", "orders", 1, 5, "-", "-", "-", "-", "-"),
        ("billing", "orders", 2, "-", "-", "-", "m-1", "10.0.0.7", "till"),
    ]


def test_lag_without_a_leader_is_named_and_not_counted() -> None:
    assert state().problems == ["billing: the lag of orders-1 is not known: no leader answered"]
    assert state().document["lag"] == 7


def test_group_that_does_not_exist_is_one_problem() -> None:
    error = RequestFailed("no such group", code=ErrorCode.GROUP_ID_NOT_FOUND)
    assert GroupState(GroupDescription("x", error=error), GroupLag({})).problems == ["there is no group x"]
    silent = GroupState(GroupDescription("x", error=RequestFailed("no answer")), GroupLag({FIRST: lag_of(1, 2)}))
    assert silent.problems == ["x is not known completely: no answer"]
    assert silent.document["partitions"][0]["lag"] == 1


def test_assignment_is_printed_by_topic() -> None:
    assert assignment_text([SECOND, TopicPartition("a", 3), FIRST]) == "a(3),orders(0,1)"


# -- seek ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("earliest", Beginning()),
        ("latest", End()),
        ("42", Offset(42)),
        ("-5", BeforeEnd(5)),
        ("@1000000000000", Time(1_000_000_000_000)),
        ("@-1s", Time(4000)),
        ("shift:-10", Shift(-10)),
        ("shift:+3", Shift(3)),
        ("current", Current()),
    ],
    ids=str,
)
def test_targets_are_parsed(text: str, target: Any) -> None:
    assert parse_target(text, 5000) == target


@pytest.mark.parametrize("text", ["", "soon", "shift:", "shift:x", "shift:--5", "shift:+-5", f"shift:{10**19}", "@soon"])
def test_other_targets_are_wrong_usage(text: str) -> None:
    with pytest.raises(UsageError, match="--to"):
        parse_target(text, 0)


@pytest.mark.parametrize(
    ("target", "new"),
    [
        (Beginning(), 10),
        (End(), 50),
        (Offset(20), 20),
        (Offset(99), 50),
        (Offset(0), 10),
        (BeforeEnd(5), 45),
        (Shift(3), 23),
        (Shift(-30), 10),
        (Current(), 20),
    ],
    ids=str,
)
def test_new_offset_is_in_the_log(target: Any, new: int) -> None:
    """A log that begins at 10 and ends at 50, and a group at 20."""
    assert planned(FIRST, target, 20, 10, 50).new == new


def test_offset_that_cannot_be_moved_says_why() -> None:
    assert planned(FIRST, Shift(1), None, 10, 50).problem == "it has no committed offset"
    assert planned(FIRST, End(), 3, None, None).problem == "its leader did not answer"
    assert planned(FIRST, None, 3, 10, 50).problem == "its leader did not answer"


class SilentAdmin:
    """The group is at 20 in each partition, and each log has the offsets 10 to 49. To a time, FIRST answers with offset 33,
    SECOND with no record, and the leader of THIRD does not answer."""

    moved: ClassVar[dict[tuple[str, int], int]] = {}

    def __init__(self, **_: Any) -> None:
        self.moved.clear()

    async def __aenter__(self) -> SilentAdmin:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def list_group_offsets(self, group_id: str) -> dict[TopicPartition, OffsetAndMetadata]:
        return dict.fromkeys((FIRST, SECOND, THIRD), OffsetAndMetadata(20))

    async def list_offsets(
        self, wanted: Mapping[TopicPartition, int], *, timeout_ms: float
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        if set(wanted.values()) <= {-1, -2}:
            return {tp: OffsetAndTimestamp(10 if timestamp == -2 else 50, -1) for tp, timestamp in wanted.items()}
        return {FIRST: OffsetAndTimestamp(33, 1_000_000_000_000), SECOND: None}

    async def alter_group_offsets(
        self, group_id: str, offsets: Mapping[tuple[str, int], int]
    ) -> dict[TopicPartition, GroupOffsetResult]:
        self.moved.update(offsets)
        return {TopicPartition(*tp): GroupOffsetResult(ErrorCode.NONE, "") for tp in offsets}


def test_time_moves_no_partition_whose_leader_is_silent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A partition without a record at or after the time moves to its end. If its leader did not answer, the records after the
    time are unknown, and the group would skip them at the end."""
    monkeypatch.setattr("strandline.client.Admin", SilentAdmin)
    with pytest.raises(typer.Exit) as ended:
        seek("billing", to="@1000000000000", yes=True, bootstrap="h:1")
    assert ended.value.exit_code == 1
    assert SilentAdmin.moved == {FIRST: 33, SECOND: 50}
    assert "orders-2 is not moved: its leader did not answer" in capsys.readouterr().err


def test_silent_leaders_are_the_reason_that_nothing_is_moved(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The advice to choose other partitions would mislead: they are chosen, and nothing is asked or written."""

    async def no_answer(*_: object, **__: object) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        return {}

    monkeypatch.setattr("strandline.client.Admin", SilentAdmin)
    monkeypatch.setattr(SilentAdmin, "list_offsets", no_answer)
    with pytest.raises(typer.Exit) as ended:
        seek("billing", to="latest", yes=True, bootstrap="h:1")
    assert ended.value.exit_code == 1
    assert SilentAdmin.moved == {}
    assert "orders-0 is not moved: its leader did not answer" in capsys.readouterr().err


# -- a real cluster -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def topic(up: Up) -> str:
    assert run("topic", "create", "grouped", "-p", "3", "-r", "3", "-b", up.bootstrap).code == 0
    for partition in "012":
        assert run("produce", "grouped", "-p", partition, "-b", up.bootstrap, stdin="a\nb\nc\nd\n").code == 0
    return "grouped"


def group(up: Up, *words: str) -> Outcome:
    return run("group", *words, "-b", up.bootstrap)


@contextmanager
def member(up: Up, topic: str, group_id: str) -> Iterator[None]:
    """A member of the group that has read everything, while the block runs."""
    words = ("consume", topic, "--group", group_id, "--from", "beginning", "-b", up.bootstrap)
    with at_a_terminal(*words, env=ENVIRONMENT) as terminal:
        terminal.wait_for("waiting for records")
        yield
        terminal.type("\x03")
        terminal.wait_for_end(10)


@pytest.mark.processes
def test_group_reads_from_its_committed_offsets(up: Up, topic: str) -> None:
    words = ("consume", topic, "--group", "readers", "--from", "beginning", "-b", up.bootstrap)
    first = run(*words, "-n", "5")
    second = run(*words, "-n", "7")
    assert sorted(first.out.split() + second.out.split()) == sorted("abcd" * 3)
    (described,) = group(up, "describe", "readers", "-o", "json").json()["groups"]
    assert (described["state"], described["lag"]) == ("Empty", 0)
    assert [p["committed_offset"] for p in described["partitions"]] == [4, 4, 4]


@pytest.mark.processes
def test_members_are_described_and_removed(up: Up, topic: str) -> None:
    with member(up, topic, "members"):
        wait_until(lambda: "Stable" in group(up, "list", "-o", "plain").out, "the group is stable")
        assert "members\tconsumer\tStable" in group(up, "list", "--state", "Stable", "-o", "plain").out
        rows = [line.split("\t") for line in group(up, "describe", "members", "-o", "plain").out.splitlines()]
        assert [row[:6] for row in rows] == [["members", topic, str(p), "4", "4", "0"] for p in range(3)]
        (one,) = {row[6] for row in rows}
        assert f"{topic}(0,1,2)" in group(up, "describe", "members", "--members", "--wide").out
        assert "uniform" in group(up, "describe", "members", "--state").out
        assert "has members" in one_sentence(group(up, "seek", "members", "--to", "earliest", "--yes"))
        assert "has members" in group(up, "delete", "members", "--yes").err
        assert f"{one} removed from members" in group(up, "remove-member", "members", one).out


@pytest.mark.processes
def test_offsets_are_moved_and_deleted(up: Up, topic: str) -> None:
    """The lag follows the offsets, and a dry run moves none."""
    assert run("consume", topic, "-g", "movers", "--from", "beginning", "-n", "12", "-b", up.bootstrap).code == 0
    dry = group(up, "seek", "movers", "--to", "shift:-1", "--dry-run")
    assert (dry.code, "3 offsets would be moved" in dry.out) == (0, True)
    assert group(up, "lag", "movers", "-o", "json").json()["lags"][0]["lag"] == 0
    assert "give --yes" in one_sentence(group(up, "seek", "movers", "--to", "earliest"))
    moved = group(up, "seek", "movers", "--to", "1", "--topic", f"{topic}:0,2", "--yes", "-o", "json").json()
    assert [(p["partition"], p["new_offset"], p["error"]) for p in moved["partitions"]] == [(0, 1, None), (2, 1, None)]
    assert group(up, "lag", "movers", "-o", "plain").out == f"movers\t{topic}\t3\t6\t3\tEmpty\n"
    outside = group(up, "seek", "movers", "--to", "99", "--yes")
    assert (outside.code, outside.err.count("has no offset 99; the nearest is 4")) == (0, 3)
    assert group(up, "delete", "movers", "--yes").out == "movers deleted\n"
    gone = group(up, "describe", "movers")
    assert (gone.code, one_sentence(gone)) == (1, "strandline: there is no group movers")


@pytest.mark.processes
def test_seek_creates_a_group_for_named_topics(up: Up, topic: str) -> None:
    assert "no offset to move" in one_sentence(group(up, "seek", "fresh", "--to", "latest", "--yes"))
    assert group(up, "seek", "fresh", "--to", "latest", "--topic", topic, "--yes").code == 0
    assert group(up, "lag", "fresh", "-o", "json").json()["lags"][0]["lag"] == 0


def test_exported_lines_are_kafkas_and_are_read_again() -> None:
    offsets = {("orders", 0): 5, ("orders", 1): 0, ("payments", 0): 7}
    assert csv_text(offsets) == "orders,0,5\norders,1,0\npayments,0,7"
    assert parse_csv(csv_text(offsets).splitlines(), "billing", "f") == offsets


def test_file_for_several_groups_gives_the_lines_of_one() -> None:
    """kafka-consumer-groups.sh begins the lines with the group if it exports several."""
    lines = ["billing,orders,0,5", "audit,orders,0,9", "", '"billing","orders",1,6']
    assert parse_csv(lines, "billing", "f") == {("orders", 0): 5, ("orders", 1): 6}


@pytest.mark.parametrize("line", ["topic,partition,offset", "orders,0", "orders,0,-1", ",0,1", "orders,0,1 5", "a,b,orders,0,1"])
def test_line_that_is_no_offset_is_named(line: str) -> None:
    with pytest.raises(UsageError, match=r"f\.csv, line 2: .* such as orders,0,1042"):
        parse_csv(["orders,1,1", line], "billing", "f.csv")


def test_partition_with_two_lines_is_an_error() -> None:
    with pytest.raises(UsageError, match="orders-0 has an offset in an earlier line"):
        parse_csv(["orders,0,1", "orders,0,2"], "billing", "f.csv")


@pytest.mark.processes
def test_offsets_travel_through_a_file(up: Up, topic: str, tmp_path: Path) -> None:
    """What --export prints is read by --from-file, also for another group, and with several topics. Kafka's names work, too."""
    other = f"{topic}-other"
    assert run("topic", "create", other, "--partitions", "1", "-b", up.bootstrap).code == 0
    for name in (topic, other):
        assert group(up, "seek", "exporters", "--to", "latest", "--topic", name, "--yes").code == 0
    file = tmp_path / "offsets.csv"
    words = ("--group", "exporters", "--reset-offsets", "--to-current", "--all-topics", "--export", "--dry-run")
    exported = group(up, "seek", *words)
    assert exported.out == f"{topic},0,4\n{topic},1,4\n{topic},2,4\n{other},0,0\n"
    assert group(up, "seek", "exporters", "--export").out == exported.out
    assert group(up, "seek", "exporters", "--to", "shift:-1", "--topic", topic, "--export").out.startswith(f"{topic},0,3\n")
    file.write_text(f"{topic},0,1\n{topic},2,99\n{other},0,0\n")
    dry = group(up, "seek", "importers", "--from-file", str(file), "--dry-run")
    assert (dry.code, "3 offsets would be moved" in dry.out) == (0, True)
    assert "has no offset 99; the nearest is 4" in dry.err
    moved = group(up, "seek", "--group", "importers", "--reset-offsets", "--from-file", str(file), "--execute", "-o", "json")
    assert [(p["topic"], p["partition"], p["new_offset"]) for p in moved.json()["partitions"]] == [
        (topic, 0, 1),
        (topic, 2, 4),
        (other, 0, 0),
    ]
    assert group(up, "seek", "importers", "--export").out == f"{topic},0,1\n{topic},2,4\n{other},0,0\n"
    file.write_text(f"{topic},7,1\n")
    assert "has no partition 7" in one_sentence(group(up, "seek", "importers", "--from-file", str(file), "--yes"))
    assert "cannot read" in one_sentence(group(up, "seek", "importers", "--from-file", str(tmp_path / "none"), "--yes"))


@pytest.mark.processes
def test_offsets_are_deleted_by_topic_and_partition(up: Up, topic: str) -> None:
    """The command refuses while a member of the group is subscribed to the topic, as in Kafka (KIP-496), and without a
    confirmation."""
    with member(up, topic, "forgetful"):
        wait_until(lambda: "Stable" in group(up, "list", "-o", "plain").out, "the group is stable")
        wait_until(lambda: f"{topic}\t0\t4" in group(up, "describe", "forgetful", "-o", "plain").out, "it has committed")
        refused = group(up, "delete-offsets", "forgetful", "--topic", topic, "--yes")
        assert (refused.code, "a member of forgetful is subscribed to it" in refused.err) == (1, True)
    assert "give --yes" in one_sentence(group(up, "delete-offsets", "forgetful", "-t", topic))
    one = group(up, "delete-offsets", "--group", "forgetful", "--topic", f"{topic}:1", "--yes", "-o", "json").json()
    assert one["partitions"] == [{"topic": topic, "partition": 1, "deleted_offset": 4, "error": None}]
    assert "no committed offset for" in one_sentence(group(up, "delete-offsets", "forgetful", "-t", f"{topic}:1", "--yes"))
    rest = group(up, "delete-offsets", "forgetful", "-t", topic, "--yes")
    assert "2 offsets deleted" in rest.out
    assert "no committed offset for" in one_sentence(group(up, "delete-offsets", "forgetful", "-t", topic, "--yes"))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("group", "seek", "g", "--yes"), "--to WHERE or --from-file FILE"),
        (("group", "seek", "g", "--to", "0", "--from-file", "f", "--yes"), "leave out --to"),
        (("group", "seek", "g", "--export", "--yes"), "leave out --yes"),
        (("group", "delete-offsets", "g", "--topic", "t:x", "--yes"), "TOPIC:0,1"),
        (("consume", "t", "--group", "g", "-e"), "leave out --partition and --exit-at-end"),
        (("consume", "t", "--group", "g", "--from", "5"), "beginning or end"),
        (("group", "describe", "g", "--members", "--state"), "exclude each other"),
        (("group", "remove-member", "g"), "name the members"),
        (("group", "seek", "g", "--to", "0", "--topic", "t:x", "--yes"), "TOPIC:0,1"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_contradicting_options_are_wrong_usage(words: tuple[str, ...], says: str) -> None:
    outcome = run(*words)
    assert outcome.code == 2
    assert says in one_sentence(outcome)
