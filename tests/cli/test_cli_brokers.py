"""Leaders and registrations of brokers: `elect --preferred --all` and `cluster unregister`, on a cluster of real processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cli_world import Outcome, Up, one_sentence, run, start_up, wait_until

pytestmark = pytest.mark.processes


def on(up: Up, *arguments: str) -> Outcome:
    return run(*arguments, env={"STRANDLINE_BOOTSTRAP": up.bootstrap})


def node(up: Up, action: str, name: str) -> None:
    assert run("node", action, name, "--data", str(up.folder)).code == 0


def brokers(up: Up) -> dict[int, bool]:
    """Broker id -> whether it is fenced."""
    return {b["broker_id"]: b["is_fenced"] for b in on(up, "cluster", "describe", "--json").json()["brokers"]}


def partition(up: Up, topic: str, index: int) -> dict[str, Any]:
    (described,) = on(up, "topic", "describe", topic, "--json").json()["topics"]
    return dict(described["partitions"][index])


def test_a_broker_is_unregistered_when_it_is_dead_and_has_no_replicas(tmp_path: Path) -> None:
    with start_up(tmp_path, "--brokers", "4") as up:
        assert on(up, "topic", "create", "orders", "--replica-assignment", "1:2:3,2:3:1").code == 0
        alive = on(up, "cluster", "unregister", "4")
        assert (alive.code, "broker 4 is alive" in one_sentence(alive)) == (1, True)
        node(up, "kill", "broker-4")
        wait_until(lambda: brokers(up)[4], "broker 4 is fenced")
        assert on(up, "cluster", "unregister", "4").out == "broker 4 is unregistered\n"
        assert sorted(brokers(up)) == [1, 2, 3]
        again = on(up, "cluster", "unregister", "4")
        assert (again.code, "broker 4 is not registered" in one_sentence(again)) == (1, True)
        node(up, "start", "broker-4")
        wait_until(lambda: brokers(up).get(4) is False, "broker 4 has registered anew")
        node(up, "kill", "broker-3")
        wait_until(lambda: brokers(up)[3], "broker 3 is fenced")
        assert "broker 3 hosts 2 replicas, of orders (2)" in one_sentence(on(up, "cluster", "unregister", "3"))


def test_all_preferred_leaders_are_elected(tmp_path: Path) -> None:
    """The leaders do not return by themselves here, so that the command has something to do."""
    with start_up(tmp_path, "--set", "auto.leader.rebalance.enable=false") as up:
        assert on(up, "topic", "create", "orders", "--replica-assignment", "1:2:3,2:3:1").code == 0
        assert on(up, "elect", "--preferred", "--all").out == "every partition is led by its preferred replica\n"
        node(up, "stop", "broker-2")
        failed = on(up, "elect", "--preferred", "--all")
        assert (failed.code, failed.out) == (3, "orders-1: broker 2 is not in the ISR\n")
        node(up, "start", "broker-2")
        wait_until(lambda: 2 in partition(up, "orders", 1)["isr"], "broker 2 is in sync again")
        elected = on(up, "elect", "--preferred", "--all", "--json").json()
        assert elected == {"elected": [{"topic": "orders", "partition": 1, "leader": 2}], "failed": []}
        assert partition(up, "orders", 1)["leader"] == 2


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["elect", "--all"], "--preferred"),
        (["elect", "orders", "0", "--preferred", "--all"], "either a TOPIC and a PARTITION, or --all"),
        (["elect", "orders", "--preferred"], "TOPIC and PARTITION are missing"),
    ],
)
def test_wrong_words_are_refused(words: list[str], text: str) -> None:
    outcome = run(*words)
    assert (outcome.code, text in one_sentence(outcome)) == (2, True)
