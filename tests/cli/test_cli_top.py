"""`strandline top`: the rates between two samples, and the screen that shows them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
from cli_world import Up, one_sentence, run
from terminal import at_a_terminal
from textual.widgets import DataTable, Static, TabbedContent

from strandline.cli.top_rates import GroupRow, GroupSample, Sample, overview
from strandline.cli.top_screen import Top
from strandline.client import BrokerDescription, ClusterDescription, PartitionDescription, TopicDescription, TopicPartition
from strandline.protocol.errors import StrandlineError

FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)


def partition(number: int, leader: int = 1, isr: tuple[int, ...] = (1, 2)) -> PartitionDescription:
    return PartitionDescription(number, leader, 3, 0, (1, 2), isr, (), ())


def sample(at_s: float, ends: dict[TopicPartition, int], size: int = 0, **more: Any) -> Sample:
    """Two brokers, one topic with two partitions; partition 0 is led by broker 1, the other by broker 2."""
    brokers = [BrokerDescription(i, "h", 9000 + i) for i in (1, 2)]
    facts: dict[str, Any] = {
        "topics": [TopicDescription("orders", b"1", [partition(0), partition(1, 2)])],
        "sizes": {1: {FIRST: size, SECOND: 0}, 2: {FIRST: size, SECOND: 0}},
    }
    return Sample(at_s, ClusterDescription("c", 101, brokers), ends=ends, **{**facts, **more})


def test_rates_are_the_growth_per_second() -> None:
    found = overview(sample(10, {FIRST: 100, SECOND: 0}, 1000), sample(14, {FIRST: 180, SECOND: 4}, 5000))
    assert [(row.partition, row.records_per_s, row.bytes_per_s) for row in found.partitions] == [(0, 20, 1000), (1, 1, 0)]
    assert [(row.broker_id, row.records_per_s) for row in found.brokers] == [(1, 20), (2, 1)]
    assert (found.topics[0].records_per_s, found.records_per_s, found.bytes_per_s) == (21, 21, 1000)


def test_first_sample_has_no_rates() -> None:
    found = overview(None, sample(1, {FIRST: 5, SECOND: 5}))
    assert found.records_per_s is None
    assert [row.end_offset for row in found.partitions] == [5, 5]


def test_shorter_log_has_the_rate_zero() -> None:
    """Retention removes segments, and a truncation removes records."""
    assert overview(sample(1, {FIRST: 9}, 900), sample(2, {FIRST: 5}, 100)).partitions[0].records_per_s == 0
    assert overview(sample(1, {FIRST: 9}, 900), sample(2, {FIRST: 9}, 100)).bytes_per_s == 0


def test_recreated_topic_has_no_rate() -> None:
    """Its offsets are those of another log."""
    again = [TopicDescription("orders", b"2", [partition(0), partition(1, 2)])]
    assert overview(sample(1, {FIRST: 9}), sample(2, {FIRST: 99}, topics=again)).records_per_s is None


def test_silent_broker_is_marked_and_the_others_have_rates() -> None:
    now = sample(2, {FIRST: 9}, sizes={1: {FIRST: 7}})
    found = overview(sample(1, {FIRST: 5, SECOND: 5}), now)
    assert [(row.state, row.size_bytes, row.records_per_s) for row in found.brokers] == [("ok", 7, 4), ("no answer", None, None)]
    assert found.brokers_ok == 1


def test_partitions_with_a_problem_come_first() -> None:
    topics = [TopicDescription("orders", b"1", [partition(0), partition(1, -1, ()), partition(2, 1, (1,))])]
    found = overview(None, sample(1, {}, topics=topics))
    assert [(row.partition, row.state) for row in found.partitions] == [(1, "offline"), (2, "under-replicated"), (0, "ok")]
    assert (found.offline, found.under_replicated, found.brokers[1].out_of_sync) == (1, 2, 2)


def test_groups_have_their_lag_and_the_time_to_clear_it() -> None:
    before = sample(0, {}, groups=[GroupSample("billing", "Stable", 2, 300)])
    now = sample(10, {}, groups=[GroupSample("audit", "Empty", 0, 0), GroupSample("billing", "Stable", 2, 200)])
    first, second = overview(before, now).groups
    assert (first.group_id, first.lag_per_s, first.clear_s) == ("billing", -10, 20)
    assert (second.group_id, second.lag_per_s, second.clear_s) == ("audit", None, 0)
    assert GroupRow("g", "Stable", 1, 5, 3.0).clear_s is None


# -- the screen ---------------------------------------------------------------------------------------------------------


def app_of(samples: Iterator[Sample | StrandlineError]) -> Top:
    async def take() -> Sample:
        found = next(samples)
        if isinstance(found, StrandlineError):
            raise found
        return found

    return Top(take, 3600)


def rows(app: Top, name: str) -> list[list[str]]:
    table = app.query_one(f"#{name}-table", DataTable)
    return [[str(cell) for cell in table.get_row_at(row)] for row in range(table.row_count)]


async def test_screen_shows_tables_with_rates_after_two_samples() -> None:
    groups = [GroupSample("billing", "Stable", 1, 7)]
    app = app_of(iter([sample(0, {FIRST: 0, SECOND: 0}), sample(2, {FIRST: 40, SECOND: 0}, 4000, groups=groups)]))
    async with app.run_test(size=(80, 24)) as pilot:
        await app.workers.wait_for_complete()
        await app.refresh_sample()
        await pilot.pause()
        assert rows(app, "brokers")[0][:7] == ["1", "ok", "1", "2", "0", "20", "2 KB"]
        assert rows(app, "partitions")[0][:2] == ["orders-0", "ok"]
        assert rows(app, "groups") == [["billing", "Stable", "1", "7", "", ""]]
        assert "brokers 2 of 2" in str(app.query_one("#summary", Static).render())
        for key, tab in (("p", "partitions"), ("g", "groups"), ("t", "topics"), ("b", "brokers")):
            await pilot.press(key)
            assert app.query_one(TabbedContent).active == tab
        await pilot.press("q")
    assert app.return_code == 0


async def test_screen_keeps_the_last_sample_when_the_cluster_does_not_answer() -> None:
    app = app_of(iter([sample(0, {}), StrandlineError("no broker"), sample(1, {})]))
    async with app.run_test(size=(80, 24)):
        await app.workers.wait_for_complete()
        await app.refresh_sample()
        error = app.query_one("#error", Static)
        assert (error.has_class("shown"), len(rows(app, "brokers"))) == (True, 2)
        assert "no broker" in str(error.render())
        await app.refresh_sample()
        assert not error.has_class("shown")


async def test_pause_stops_the_samples() -> None:
    app = app_of(iter([sample(0, {})]))
    async with app.run_test(size=(80, 24)) as pilot:
        await app.workers.wait_for_complete()
        await pilot.press("space")
        app._start_sample()  # the next one would raise StopIteration
        await pilot.pause()
        assert "PAUSED" in str(app.query_one("#summary", Static).render())


@pytest.mark.processes
def test_real_cluster_is_followed_until_q(up: Up) -> None:
    with at_a_terminal("top", "--interval", "0.2", "-b", up.bootstrap) as terminal:
        terminal.wait_for("brokers 3 of 3")
        terminal.type("q")
        assert terminal.wait_for_end(10) == 0


def test_top_without_a_terminal_says_what_to_use() -> None:
    outcome = run("top")
    assert outcome.code == 2
    assert "top needs a terminal" in one_sentence(outcome)


def test_top_without_textual_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from strandline.cli import top
    from strandline.protocol.errors import UsageError

    monkeypatch.setitem(sys.modules, "strandline.cli.top_screen", None)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    with pytest.raises(UsageError, match=r"pip install '\.\[tui\]'"):
        top.top()
