"""Configuration is shown, changed and compared while real nodes run; a change takes effect without a restart."""

from __future__ import annotations

from typing import Any

import pytest
from cli_world import Outcome, Up, one_sentence, run

from strandline.cli import config as cli
from strandline.protocol.errors import UsageError

pytestmark = pytest.mark.processes

DEFAULT_MAX = "1048588"


@pytest.fixture(scope="module")
def topic(up: Up) -> str:
    created = run("topic", "create", "configured", "-p", "1", "-r", "3", "--bootstrap", up.bootstrap)
    assert created.code == 0, created.err
    return "configured"


def config(up: Up, *words: str) -> Outcome:
    return run("config", *words, "--bootstrap", up.bootstrap)


def entry(up: Up, key: str, *words: str) -> dict[str, Any]:
    (found,) = config(up, "get", *words, key, "--json").json()["configs"]
    return dict(found)


def test_change_of_the_cluster_takes_effect_at_once_and_is_undone(up: Up, topic: str) -> None:
    """The response is sent when the broker that sends it has applied the change; the topic's leader may need a moment more."""
    large = "x" * 200_000
    changed = config(up, "set", "cluster", "message.max.bytes=100000")
    assert (changed.code, "message.max.bytes=100000" in changed.err) == (0, True)
    try:
        found = entry(up, "max.message.bytes", "topic", topic)
        assert (found["value"], found["source"]) == ("100000", "cluster")
        assert entry(up, "message.max.bytes", "cluster")["value"] == "100000"
        for _ in range(50):
            produced = run("produce", topic, "--bootstrap", up.bootstrap, stdin=f"{large}\n")
            if produced.code:
                break
        assert produced.code == 1
        assert "max.message.bytes" in produced.err
    finally:
        assert config(up, "unset", "cluster", "message.max.bytes").code == 0
    assert entry(up, "max.message.bytes", "topic", topic)["value"] == DEFAULT_MAX


def test_value_of_one_broker_is_compared_with_another_and_with_the_defaults(up: Up) -> None:
    assert config(up, "set", "broker", "1", "log.cleaner.backoff.ms=14000").code == 0
    try:
        found = entry(up, "log.cleaner.backoff.ms", "broker", "1")
        assert (found["value"], found["source"], found["update"]) == ("14000", "broker", "cluster, broker")
        assert [s["source"] for s in found["synonyms"]] == ["broker", "default"]
        assert entry(up, "log.cleaner.backoff.ms", "broker", "2")["source"] == "default"
        rows = config(up, "diff", "broker", "1", "2", "--json").json()["differences"]
        assert {"key": "log.cleaner.backoff.ms", "broker 1": "14000", "broker 2": "15000"} in rows
        assert "node.id" in {row["key"] for row in rows}
        rows = config(up, "diff", "broker", "1", "--json").json()["differences"]
        assert {"key": "log.cleaner.backoff.ms", "value": "14000", "default": "15000", "source": "set on the broker"} in rows
    finally:
        assert config(up, "unset", "broker", "1", "log.cleaner.backoff.ms").code == 0
    assert entry(up, "log.cleaner.backoff.ms", "broker", "1")["source"] == "default"


def test_a_group_has_values_of_its_own_until_they_are_unset(up: Up) -> None:
    """The group need not exist. What is set is compared with the defaults and with another group."""
    key, beat = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
    assert config(up, "set", "group", "kitchen", f"{key}=30000", f"{beat}=5000").code == 0
    try:
        found = entry(up, key, "group", "kitchen")
        assert (found["value"], found["source"], found["update"]) == ("30000", "group", "group")
        assert [s["name"] for s in found["synonyms"]] == [key, f"group.{key}"]
        assert "set for the group" in config(up, "get", "group", "kitchen").out
        rows = config(up, "diff", "group", "kitchen", "cellar", "--json").json()["differences"]
        assert [row["key"] for row in rows] == [key, beat]
        short = config(up, "set", "group", "kitchen", f"{key}=1")
        assert (short.code, "group.consumer.min.session.timeout.ms" in one_sentence(short)) == (1, True)
    finally:
        assert config(up, "unset", "group", "kitchen", key, beat).code == 0
    assert entry(up, key, "group", "kitchen")["source"] == "default"


def test_items_of_a_list_are_added_and_removed(up: Up, topic: str) -> None:
    assert config(up, "set", "topic", topic, "cleanup.policy+=compact").code == 0
    assert entry(up, "cleanup.policy", "topic", topic)["value"] == "delete,compact"
    (row,) = (line for line in config(up, "diff", "topic", topic).out.splitlines() if "cleanup.policy" in line)
    assert row.split()[:3] == ["cleanup.policy", "delete,compact", "delete"]
    assert config(up, "set", "topic", topic, "cleanup.policy-=compact", "retention.ms=-1").code == 0
    assert config(up, "unset", "topic", topic, "cleanup.policy", "retention.ms").code == 0
    assert entry(up, "cleanup.policy", "topic", topic)["source"] == "default"


def test_dry_run_changes_nothing(up: Up, topic: str) -> None:
    outcome = config(up, "set", "topic", topic, "retention.ms=1", "--dry-run")
    assert (outcome.code, "would be accepted" in outcome.err) == (0, True)
    assert entry(up, "retention.ms", "topic", topic)["source"] == "default"
    assert config(up, "set", "topic", topic, "retention.ms=soon", "--dry-run").code == 1


def test_min_isr_above_the_replicas_is_set_with_a_warning(up: Up, topic: str) -> None:
    outcome = config(up, "set", "topic", topic, "min.insync.replicas=4", "--dry-run")
    assert outcome.code == 0
    assert "warning: min.insync.replicas=4 acts as 3 on topic configured" in outcome.err


def test_cluster_shows_what_is_set_and_every_key_that_can_be(up: Up) -> None:
    assert "keys have default values" in config(up, "get", "cluster").out
    assert "leader.imbalance.per.broker.percentage" in config(up, "get", "cluster", "--all").out
    assert config(up, "diff", "cluster").out == "every key of cluster has its default\n"


def test_mistake_is_explained_in_one_sentence(up: Up, topic: str) -> None:
    for words, says in (
        (("set", "topic", topic, "retentoin.ms=1"), "did you mean 'retention.ms'?"),
        (("set", "broker", "1", "log.cleaner.enable=false"), "cannot be changed while the brokers run"),
        (("set", "cluster", "log.cleaner.enable=false"), "and restart them (IncrementalAlterConfigs, INVALID_CONFIG)"),
        (("get", "topic", topic, "retentoin.ms"), "did you mean 'retention.ms'?"),
    ):
        outcome = config(up, *words)
        assert outcome.code in (1, 2)
        assert says in one_sentence(outcome)


@pytest.mark.parametrize(
    ("command", "words", "says"),
    [
        ("set_", ["topic", "t"], "nothing to set"),
        ("set_", ["topic", "t", "flush.ms"], "KEY=VALUE"),
        ("set_", ["topic", "t", "=1"], "KEY=VALUE"),
        ("set_", ["topic", "t", "flush.ms=1", "flush.ms+=2"], "given twice"),
        ("unset", ["cluster"], "nothing to unset"),
        ("get", ["topics", "t"], "did you mean 'topic'"),
        ("get", ["zzz"], "none of topic, group, broker and cluster"),
        ("get", ["topic"], "the topic is missing"),
        ("get", ["broker", "x"], "a number, not 'x'"),
        ("diff", ["cluster", "x"], "config diff compares"),
        ("diff", ["broker", "1", "2", "3"], "config diff compares"),
    ],
    ids=str,
)
def test_malformed_command_is_refused_before_a_broker_is_asked(command: str, words: list[str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        getattr(cli, command)(words)
