"""The trace loses nothing that matters, and its hash depends on the run alone."""

from __future__ import annotations

import re
import subprocess
import sys
import time
import weakref
from collections import deque
from enum import IntEnum
from pathlib import Path
from typing import Any

import pytest
import structlog

from strandline.protocol.errors import UsageError
from strandline.testing.simulation.kernel import trace as trace_module
from strandline.testing.simulation.kernel.trace import (
    BATCH,
    OF_A_KIND,
    OF_A_PARTITION,
    Event,
    Trace,
    captured_logs,
    plain,
    running_node,
)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def some_run(trace: Trace, *, label: str = "fetch", isr: object = (1, 2)) -> str:
    trace.step(0.5, 1, label)
    trace.emit("isr.committed", 1, "orders-0", isr=isr)
    trace.step(0.75, 2, "append")
    return trace.sha256()


def test_an_event_has_the_virtual_time_and_a_number_of_its_own() -> None:
    """Several events have the same time; only the number says which was first."""
    clock = Clock()
    trace = Trace(clock)
    clock.now = 12.304
    trace.emit("log.truncated", 2, "orders-0", to=10, was=12)
    trace.emit("node.crashed", 1, lossy=True)
    assert trace.events() == [
        Event(12.304, 1, "log.truncated", 2, "orders-0", {"to": 10, "was": 12}),
        Event(12.304, 2, "node.crashed", 1, "", {"lossy": True}),
    ]


def test_a_field_may_have_any_name() -> None:
    """The nemesis records its actions and their targets under its own names."""
    trace = Trace(Clock())
    trace.emit("fault.begin", 0, node=2, kind="hold", partition="orders-0")
    assert trace.events() == [Event(0.0, 1, "fault.begin", 0, "", {"node": 2, "kind": "hold", "partition": "orders-0"})]


def test_equal_runs_have_equal_hashes_and_others_differ() -> None:
    """The determinism canary compares nothing but this."""
    hashes = {
        some_run(Trace(Clock())),
        some_run(Trace(Clock()), label="produce"),
        some_run(Trace(Clock()), isr=(2, 1)),
        some_run(Trace(lambda: 0.001)),
    }
    assert len(hashes) == 4
    assert some_run(Trace(Clock())) in hashes


def test_hash_is_independent_of_kept_events_and_reads() -> None:
    """A failed seed is run again with the full trace: it must be recognised as the same run."""
    asked, full = Trace(Clock()), Trace(Clock(), full=True)
    for trace in (asked, full):
        for number in range(BATCH + 10):
            trace.step(number / 8, number % 3, "tick")
            trace.emit("hw.advanced", 1, "orders-0", hw=number)
            if trace is asked and number % 1000 == 0:
                trace.sha256()
    assert asked.sha256() == full.sha256()


def test_hash_covers_the_order_of_steps_and_events() -> None:
    one, other = Trace(Clock()), Trace(Clock())
    one.step(0.0, 1, "x")
    one.emit("node.started", 1)
    other.emit("node.started", 1)
    other.step(0.0, 1, "x")
    assert one.sha256() != other.sha256()


PROGRAM = """
from strandline.testing.simulation.kernel.trace import Trace
class Thing: pass
trace = Trace(lambda: 1.0)
for number in range(50):
    trace.emit("isr.committed", 1, "orders-0", isr={f"broker-{n}" for n in range(9)}, seen=frozenset([b"a", b"b"]), thing=Thing())
    trace.step(1.0, 1, "tick")
print(trace.sha256())
"""


def test_the_hash_is_the_same_in_processes_with_different_hash_seeds() -> None:
    """In such processes, sets of strings iterate in another order, and objects have other addresses."""
    found = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2", "77")
    }
    assert len(found) == 1


def test_emitted_event_is_immutable() -> None:
    """Production code emits its own live state, and continues to change it."""
    trace = Trace(Clock())
    isr = [1, 2, 3]
    trace.emit("isr.committed", 1, "orders-0", isr=isr)
    before = trace.events()[0]
    isr.remove(3)
    assert trace.events() == [before]
    assert before.fields["isr"] == [1, 2, 3]


class Colour(IntEnum):
    RED = 1


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"tea \xff", "tea \\xff"),
        (memoryview(b"tea"), "tea"),
        ({3, 1, 2}, [1, 2, 3]),
        ((1, (2,)), [1, [2]]),
        (deque([1]), [1]),
        (range(2), [0, 1]),
        ({1: {2}}, {"1": [2]}),
        (Colour.RED, "RED"),
        (ValueError("at 0x7f3a11223344"), "ValueError: at 0x"),
        (type("Offset", (int,), {})(7), 7),
        (True, True),
    ],
)
def test_fields_are_plain_values(value: object, expected: object) -> None:
    """Every value becomes valid JSON, the same in every process."""
    assert plain(value) == expected
    assert type(plain(value)) is type(expected)


def test_default_repr_does_not_reveal_an_address() -> None:
    assert "0x7" not in plain(object())


def test_an_integer_of_any_size_may_be_emitted() -> None:
    trace, other = Trace(Clock()), Trace(Clock())
    trace.emit("producer.id", 1, id=2**70)
    other.emit("producer.id", 1, id=2**71)
    assert trace.sha256() != other.sha256()


def test_rare_event_is_kept_among_many_others() -> None:
    """A story without the crash that began it would be of no use."""
    trace = Trace(Clock())
    trace.emit("node.crashed", 1, lossy=False)
    trace.emit("leader.became", 2, "orders-1", epoch=3, start_offset=7)
    for number in range(20_000):
        trace.emit("hw.advanced", 1, "orders-0", hw=number)
    assert [event.kind for event in trace.events(kinds=("node.", "leader.became"))] == ["node.crashed", "leader.became"]


def test_a_quiet_partition_keeps_its_events_beside_a_busy_one() -> None:
    trace = Trace(Clock())
    trace.emit("hw.advanced", 1, "quiet-0", hw=1)
    for number in range(20_000):
        trace.emit("hw.advanced", 1, "busy-0", hw=number)
    assert [event.fields["hw"] for event in trace.events("quiet-0")] == [1]


def test_trace_is_bounded_and_knows_that_it_is_incomplete() -> None:
    """Memory stays flat over ten thousand seeds; a page that is built from only some of the events says so."""
    trace = Trace(Clock())
    for number in range(30_000):
        trace.emit("hw.advanced", 1, "orders-0", hw=number)
    kept = trace.events()
    assert OF_A_PARTITION <= len(kept) <= trace_module.OF_ALL + OF_A_KIND
    assert kept[-1].number == trace.emitted == 30_000
    assert not trace.is_complete
    assert trace.counts() == {"hw.advanced": 30_000}


def test_a_full_trace_keeps_everything() -> None:
    trace = Trace(Clock(), full=True)
    for number in range(30_000):
        trace.emit("hw.advanced", 1, "orders-0", hw=number)
    assert trace.is_complete
    assert len(trace.events()) == 30_000


def test_events_are_found_by_partition_kind_and_number() -> None:
    trace = Trace(Clock())
    for kind, partition in [("log.appended", "a-0"), ("node.paused", ""), ("log.truncated", "b-0"), ("log.appended", "b-0")]:
        trace.emit(kind, 1, partition)
    numbers = lambda events: [event.number for event in events]  # noqa: E731
    assert numbers(trace.events("b-0")) == [3, 4]
    assert numbers(trace.events(("b-0", ""))) == [2, 3, 4]
    assert numbers(trace.events(kinds="log.appended")) == [1, 4]
    assert numbers(trace.events(kinds=("log.", "node.paused"), last=2)) == [3, 4]
    assert numbers(trace.events("")) == [2]
    assert trace.events(last=0) == []


def test_partitions_are_ordered_as_people_count() -> None:
    trace = Trace(Clock())
    for name in ("orders-10", "orders-2", "", "a-topic-1"):
        trace.emit("hw.advanced", 1, name, hw=0)
    assert trace.partitions() == ["a-topic-1", "orders-2", "orders-10"]


def test_a_trace_survives_its_file(tmp_path: Path) -> None:
    """`strandline simulate --json` writes it where another tool reads it, years later and without the seed."""
    clock = Clock()
    trace = Trace(clock)
    trace.step(0.0, 1, "tick")
    clock.now = 1 / 3
    trace.emit("client.acked", 201, "orders-0", offset=3, value="größer \ud800".encode("utf-8", "surrogatepass"))
    trace.emit("metadata.topic", 101, name="\udcff", topic_id=b"\x00")
    trace.write_jsonl(tmp_path / "trace.jsonl", seed=42)
    again = Trace.read(tmp_path / "trace.jsonl")
    assert again.events() == trace.events()
    assert again.sha256() == trace.sha256()
    assert (again.now(), again.about["seed"]) == (1 / 3, 42)


def test_file_that_is_no_trace_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "other.jsonl").write_text('{"event": "node.started"}\n')
    (tmp_path / "empty.jsonl").write_text("")
    for name in ("other", "empty"):
        with pytest.raises(UsageError, match="no trace"):
            Trace.read(tmp_path / f"{name}.jsonl")


def test_a_closed_trace_keeps_nothing_of_its_world_alive() -> None:
    """Reports are kept; each of them must not keep a cluster in memory."""
    clock = Clock()
    clock.now = 7.5
    trace, seen = Trace(clock), weakref.ref(clock)
    trace.close()
    del clock
    assert seen() is None
    assert trace.now() == 7.5


# -- what the production code logs


def logged(level: str = "info", **fields: Any) -> Trace:
    trace = Trace(Clock())
    with captured_logs(trace):
        getattr(structlog.get_logger(), level)("partition.truncated", **fields)
    return trace


def test_a_log_line_becomes_an_event_of_its_partition_and_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    trace = logged("warning", topic="orders", partition=0, offset=10)
    [event] = trace.events("orders-0")
    assert (event.kind, event.fields) == ("log.partition.truncated", {"level": "warning", "offset": 10})
    assert capsys.readouterr() == ("", "")


def test_a_line_about_a_topic_keeps_its_topic() -> None:
    [event] = logged(topic="orders", partitions=3).events()
    assert (event.partition, event.fields["topic"], event.fields["partitions"]) == ("", "orders", 3)


def test_lines_below_the_level_cost_no_event() -> None:
    assert logged("debug").events() == []


def test_line_omits_values_that_differ_between_processes() -> None:
    assert logged(pid=1).sha256() == logged(pid=2).sha256() == logged(timestamp="now").sha256()


def test_logged_error_has_its_origin_without_local_paths() -> None:
    trace = Trace(Clock())
    with captured_logs(trace):
        try:
            raise ValueError("no such epoch")
        except ValueError as error:
            structlog.get_logger().exception("loop.callback_failed")
            structlog.get_logger().error("loop.callback_failed", exc_info=error)
    for event in trace.events():
        assert event.fields["exception"] == "ValueError: no such epoch"
        assert re.fullmatch(r"simulation/test_trace.py:\d+ test_logged_error\w+", event.fields["raised_in"])
    assert len(trace.events()) == 2


def test_structlog_is_afterwards_as_it_was() -> None:
    """The simulator runs inside other people's test sessions."""
    was_configured, before = structlog.is_configured(), structlog.get_config()
    with pytest.raises(ZeroDivisionError), captured_logs(Trace(Clock())):
        1 / 0
    assert (structlog.is_configured(), structlog.get_config()) == (was_configured, before)


def test_line_belongs_to_the_machine_whose_loop_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """All nodes log from one process: only the loop shows whose line it is."""

    class Loop:
        machine = type("Machine", (), {"id": 102})()

    monkeypatch.setattr(trace_module.asyncio, "_get_running_loop", lambda: Loop())
    assert running_node() == 102
    assert logged().events()[0].node == 102


def test_without_a_machine_a_line_is_of_the_world() -> None:
    assert running_node() == 0


# -- cost


def test_hundred_thousand_steps_take_less_than_a_second() -> None:
    """`step` and `emit` are called for every event of the scheduler; if the trace were slow, the simulator would run fewer
    seeds."""
    trace = Trace(Clock())
    started = time.process_time()
    for number in range(100_000):
        trace.step(number / 1000, number % 7, "Partition.append")
    for number in range(10_000):
        trace.emit("log.appended", 2, "orders-0", base=number, last=number, epoch=3, role="leader")
    trace.sha256()
    assert time.process_time() - started < 1.0
