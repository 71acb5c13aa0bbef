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
    """Leaders do not return by themselves in this cluster, so that the command has something to do."""
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


def test_operator_recovers_a_partition_that_lost_its_last_leader(tmp_path: Path) -> None:
    """Real processes: the plan says what each choice loses, and the report of the election stays in `topic describe`."""
    with start_up(tmp_path) as up:
        assert on(up, "recover", "--plan").out == "every partition has a leader\n"
        created = on(up, "topic", "create", "orders", "--replica-assignment", "1:2:3", "-c", "min.insync.replicas=1")
        assert created.code == 0
        for broker in ("broker-2", "broker-3"):
            node(up, "stop", broker)
        assert run("produce", "orders", "--bootstrap", up.bootstrap, stdin="only on broker 1\n").code == 0
        node(up, "kill", "broker-1")
        for broker in ("broker-2", "broker-3"):
            node(up, "start", broker)
        plan = ["recover", "--plan", "--json"]

        def found() -> list[int]:
            return [each["broker"] for p in on(up, *plan).json()["partitions"] for each in p["choices"]]

        wait_until(lambda: found() == [2, 3], "both replicas are candidates")
        shown = on(up, "recover", "--plan")
        assert "offset 0 and above" in shown.out
        refused = on(up, "recover", "--apply", "orders", "0", "--broker", "1", "--yes")
        assert (refused.code, "broker 1" in one_sentence(refused)) == (1, True)
        applied = on(up, "recover", "--apply", "orders", "0", "--broker", "3", "--yes")
        assert applied.out == "orders-0: broker 3 is elected; may be lost: offset 0 and above\n"
        wait_until(
            lambda: "unclean election (operator) of broker 3" in on(up, "topic", "describe", "orders").out,
            "every broker knows the report",
        )
        missing = on(up, "recover", "--plan", "orders", "7")
        assert (missing.code, one_sentence(missing)) == (2, "strandline: topic orders has no partition 7; it has 1")
        (report,) = on(up, "topic", "describe", "orders", "--json").json()["topics"][0]["unclean_elections"]
        assert (report["lost_from"], report["lost_to"], report["last_known_leader"]) == (0, None, 1)
        wait_until(lambda: sorted(partition(up, "orders", 0)["isr"]) == [2, 3], "the other replica is in sync")
        assert on(up, "elect", "orders", "0", "--unclean", "--yes").out == "orders-0: broker 3 leads already\n"
        assert on(up, "elect", "--unclean", "--all", "--yes").out == "every partition has a leader\n"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["elect", "--all"], "--preferred or --unclean"),
        (["elect", "orders", "0", "--preferred", "--unclean"], "--preferred or --unclean"),
        (["elect", "orders", "0", "--unclean"], "give --yes"),
        (["recover"], "give one of --plan and --apply"),
        (["recover", "--apply", "orders", "0"], "--apply needs TOPIC, PARTITION and --broker"),
        (["recover", "--apply", "orders", "0", "--broker", "1"], "give --yes"),
        (["elect", "orders", "0", "--preferred", "--all"], "either a TOPIC and a PARTITION, or --all"),
        (["elect", "orders", "--preferred"], "TOPIC and PARTITION are missing"),
    ],
)
def test_wrong_words_are_refused(words: list[str], text: str) -> None:
    outcome = run(*words)
    assert (outcome.code, text in one_sentence(outcome)) == (2, True)
