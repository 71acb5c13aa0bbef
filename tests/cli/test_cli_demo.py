"""`strandline demo`: it runs, and its verdict can be bad."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cli_world import run

from strandline.demo import PARTITIONS, Demo, Source, library_sources

LINES = [b"import this\n", b"print(1)\n"]


@pytest.mark.processes
def test_the_demo_succeeds() -> None:
    """The test sends a small part of the library; `make demo` sends all of it."""
    outcome = run("demo", "--lines", "30000", "--json", timeout_s=60)
    assert outcome.code == 0, outcome.err
    result = outcome.json()
    assert result["verdict"] == "ok"
    assert result["records_sent"] >= 30000
    assert result["records_acknowledged"] == result["records_read"] == result["records_sent"]
    assert result["files_rebuilt"] == result["files"] > 10
    assert (result["replicas_compared"], result["replicas_different"]) == (18, 0)
    assert (result["records_lost"], result["records_doubled"], result["records_reordered"]) == (0, 0, 0)
    assert 0 < result["longest_gap_ms"] < 30_000
    assert any("SIGKILL broker" in e for e in result["events"])
    assert any("SIGKILL controller" in e for e in result["events"])


def test_the_sources_are_the_library_line_by_line() -> None:
    sources = library_sources()
    assert len(sources) > 500
    names = [s.name for s in sources]
    assert "json/decoder.py" in names
    assert not any("site-packages" in name for name in names)
    first = 0
    for source in sources:
        assert source.first == first
        first += len(source.lines)
        assert hashlib.sha256(b"".join(source.lines)).hexdigest() == source.digest


def judged(tmp_path: Path, offsets: dict[bytes, int], read: list[tuple[int, bytes]], logs: Sequence[bytes | None]) -> Demo:
    """Judge a demo with these acknowledgements, these records read, and these logs of partition 0 (None: no log)."""
    brokers: list[Any] = []
    for i, content in enumerate(logs):
        for partition, bytes_ in enumerate([content, *[b"same"] * (PARTITIONS - 1)]):
            if bytes_ is not None:
                folder = tmp_path / str(i) / f"python-lines-{partition}"
                folder.mkdir(parents=True)
                (folder / f"{0:020}.log").write_bytes(bytes_)
        brokers.append(SimpleNamespace(name=f"broker-{i}", data=tmp_path / str(i)))
    source = Source("this.py", 0, LINES, hashlib.sha256(b"".join(LINES)).hexdigest())
    demo = Demo(SimpleNamespace(brokers=brokers), [source], lambda text: None)  # type: ignore[arg-type]
    for number, line in enumerate(LINES):
        if line in offsets:
            send = demo.history.invoke("producer", 0, number)
            send.ok(offsets[line])
    demo.history.poll("reader", 0, [(offset, LINES.index(line)) for offset, line in read], final=True)
    demo._judge(int([line for _, line in read] == LINES))
    return demo


ALL = {LINES[0]: 0, LINES[1]: 1}
READ = [(0, LINES[0]), (1, LINES[1])]


def test_a_run_without_anomalies_is_good(tmp_path: Path) -> None:
    result = judged(tmp_path, ALL, READ, [b"same"] * 3).result
    assert result.good, result.problems
    assert result.to_json()["verdict"] == "ok"


@pytest.mark.parametrize(
    ("offsets", "read", "logs", "count"),
    [
        (ALL, READ[:1], [b"same"] * 3, "records_lost"),
        (ALL, [*READ, (2, LINES[1])], [b"same"] * 3, "records_doubled"),
        ({LINES[0]: 1, LINES[1]: 0}, [(0, LINES[1]), (1, LINES[0])], [b"same"] * 3, "records_reordered"),
        (ALL, READ, [b"same", b"same", b"samE"], "replicas_different"),
        (ALL, READ, [b"same", b"same", None], "replicas_different"),
    ],
    ids=["lost", "doubled", "reordered", "a replica differs", "a replica is missing"],
)
def test_a_broken_promise_makes_the_verdict_bad(
    tmp_path: Path, offsets: dict[bytes, int], read: list[tuple[int, bytes]], logs: Sequence[bytes | None], count: str
) -> None:
    result = judged(tmp_path, offsets, read, logs).result
    assert not result.good
    assert result.to_json()["verdict"] == "bad"
    assert getattr(result, count) == 1


def test_an_unacknowledged_record_makes_the_verdict_bad(tmp_path: Path) -> None:
    result = judged(tmp_path, {LINES[0]: 0}, READ[:1], [b"same"] * 3).result
    assert any("1 records were not acknowledged" in p for p in result.problems)
