"""No read fails as a whole because one broker is down: it shows what it has, and says what is missing.

Every read is polled while a broker is killed, while another is paused, and while the active controller is killed, on real
processes. That is slow: each read has tests of its own in `tests/client` and `tests/cli`, in which nodes fail one by one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest
from cli_world import Outcome, Up, run, start_up, wait_until

pytestmark = [pytest.mark.processes, pytest.mark.slow]

READS: tuple[tuple[str, ...], ...] = (
    ("topic", "list"),
    ("topic", "describe"),
    ("topic", "describe", "orders", "--under-replicated"),
    ("topic", "offsets", "orders"),
    ("topic", "producers", "orders"),
    ("topic", "analyze", "orders"),
    ("cluster", "describe"),
    ("quorum", "describe"),
    ("features", "describe"),
    ("log-dirs", "describe", "--partitions"),
    ("config", "get", "topic", "orders"),
    ("config", "get", "cluster"),
    ("config", "get", "broker", "3"),
    ("config", "diff", "broker", "1", "3"),
    ("recover", "--plan"),
    ("reassign", "--progress"),
    ("group", "list"),
    ("group", "describe", "readers"),
    ("group", "lag"),
    ("health", "--cluster"),
    ("doctor",),
)
LONGEST_S = 15.0
"""How long a read may take in any of these states, on a busy machine."""
WHOLE, MISSING, UNHEALTHY = 0, 1, 3


class Seen(NamedTuple):
    words: tuple[str, ...]
    outcome: Outcome
    took_s: float


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """Three brokers and three controllers, with a topic that has records, producers, and a group with offsets."""
    with start_up(tmp_path_factory.mktemp("partial"), "--controllers", "3") as up:
        at = ("-b", up.bootstrap)
        assert run("topic", "create", "orders", "-p", "6", "-r", "3", *at).code == 0
        assert run("topic", "create", "single", "--replica-assignment", "1,2,3", *at).code == 0
        for topic in ("orders", "single"):
            lines = "".join(f"key {n}:{n}\n" for n in range(300))
            assert run("produce", topic, "--key-separator", ":", *at, stdin=lines).code == 0
        assert run("consume", "orders", "-g", "readers", "--from", "beginning", "-n", "300", *at).code == 0
        yield up


def poll(up: Up) -> list[Seen]:
    """Run every read, a few at a time, as JSON."""

    def one(words: tuple[str, ...]) -> Seen:
        began = time.monotonic()
        outcome = run(*words, "-o", "json", "-b", up.bootstrap, timeout_s=90)
        return Seen(words, outcome, time.monotonic() - began)

    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(one, READS))


def check(polled: list[Seen]) -> dict[str, Outcome]:
    """Each read has printed its document, said what is missing if something is, and did not take long."""
    for seen in polled:
        name, outcome = " ".join(seen.words), seen.outcome
        assert outcome.code in (WHOLE, MISSING, UNHEALTHY), (name, outcome)
        assert outcome.out, (name, outcome)
        assert isinstance(outcome.json(), dict), (name, outcome)
        assert outcome.code != MISSING or outcome.err.startswith("strandline: "), (name, outcome)
        assert seen.took_s < LONGEST_S, (name, seen.took_s)
    return {" ".join(seen.words): seen.outcome for seen in polled}


def node(up: Up, action: str, name: str) -> None:
    assert run("node", action, name, "--data", str(up.folder), timeout_s=60).code == 0


def heal(up: Up) -> None:
    wait_until(lambda: run("health", "--cluster", "-b", up.bootstrap).code == 0, "the cluster is healthy", 60)


def test_every_read_shows_what_it_has_while_nodes_fail(own: Up) -> None:
    """One test, because each fault begins with the cluster that the one before left behind."""
    found = check(poll(own))
    assert {name: outcome.code for name, outcome in found.items() if outcome.code} == {}

    # A paused broker holds its connections open, and answers nothing: at first as a leader, and then fenced.
    node(own, "pause", "broker-3")
    try:
        found = check(poll(own))
        assert found["log-dirs describe --partitions"].json()["brokers"][2] == {"broker": 3, "log_dirs": None}
        assert found["config get broker 3"].json()["complete"] is False
        assert [p["error"] for p in found["topic offsets orders"].json()["partitions"]].count(None) >= 4
        assert [p["records"] for p in found["topic analyze orders"].json()["partitions"] if p["error"] is None]
    finally:
        node(own, "resume", "broker-3")
    heal(own)

    # A killed broker refuses connections; the partition that it alone had keeps its row.
    node(own, "kill", "broker-2")
    found = check(poll(own))
    assert found["health --cluster"].code == UNHEALTHY
    offline = next(
        p for p in run("topic", "offsets", "single", "-o", "json", "-b", own.bootstrap).json()["partitions"] if p["error"]
    )
    assert (offline["partition"], offline["records"], offline["error"]) == (1, None, "no leader")
    assert found["recover --plan"].json()["partitions"][0]["topic"] == "single"
    shown = run("consume", "single", "-e", "-b", own.bootstrap, timeout_s=60)
    assert shown.code == MISSING
    assert shown.out.count("\n") > 100
    assert "single-1" in shown.err
    node(own, "start", "broker-2")
    heal(own)

    # The active controller is killed: the quorum elects another one.
    controller = run("cluster", "describe", "--json", "-b", own.bootstrap).json()["controller_id"]
    node(own, "kill", f"controller-{controller}")
    check(poll(own))
    node(own, "start", f"controller-{controller}")
    heal(own)
