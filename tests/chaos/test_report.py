"""A run without a judged record has no good verdict."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from strandline.chaos.report import Report
from strandline.demo import Demo
from strandline.testing.history import History, check


def history(*outcomes: str) -> History:
    found = History()
    for number, outcome in enumerate(outcomes):
        send = found.invoke("p", 0, number)
        send.ok(number) if outcome == "ok" else send.info()
        found.poll("last", 0, [(number, number)], final=True)
    return found


def report(found: History) -> Report:
    made = Report("s", "a scenario", "local", {})
    made.take_history(check(found, acks="all"))
    return made


def test_chaos_run_without_an_acknowledged_record_is_bad() -> None:
    assert report(history("ok")).verdict == "ok"
    assert report(history("info")).problems == ["no acknowledged record was judged, so the run proves nothing"]
    assert report(history()).verdict == "bad"


def test_demo_without_records_and_comparisons_is_bad() -> None:
    demo = Demo(cast(Any, SimpleNamespace(brokers=[])), [], lambda _: None)
    demo._judge(0)
    assert demo.result.problems == [
        "no acknowledged record was judged, so the run proves nothing",
        "the logs of 0 partitions were compared, and there are 6",
    ]
    assert not demo.result.good
