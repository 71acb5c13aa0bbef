"""`strandline quota`: quotas as an operator sets and sees them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cli_world import Outcome, one_sentence, run

from strandline.testing import Cluster
from strandline.testing.kit.threaded import ThreadedCluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[ThreadedCluster]:
    with Cluster.running_in_thread(brokers=1) as cluster:
        yield cluster


def strandline(cluster: ThreadedCluster, *words: str) -> Outcome:
    return run(*words, "-b", cluster.bootstrap_servers)


def test_quotas_are_set_listed_and_removed(cluster: ThreadedCluster) -> None:
    """What was set is listed in the words in which it is understood, and can be removed key by key."""
    assert strandline(cluster, "quota", "set", "--user", "alice", "producer_byte_rate=10MB", "request_percentage=50").code == 0
    assert strandline(cluster, "quota", "set", "--user-default", "--client-id", "app", "consumer_byte_rate=500000").code == 0
    assert strandline(cluster, "quota", "set", "--ip", "10.0.0.1", "connection_creation_rate=5").code == 0
    found = strandline(cluster, "quota", "list")
    assert "10 MB/s per broker" in found.out
    assert "user <default>, client-id app" in found.out
    assert "5 connections/s per broker" in found.out
    only = strandline(cluster, "quota", "list", "--user", "alice")
    assert "request_percentage" in only.out
    assert "connection_creation_rate" not in only.out
    assert strandline(cluster, "quota", "unset", "--user", "alice", "producer_byte_rate", "request_percentage").code == 0
    assert strandline(cluster, "quota", "list", "--user", "alice").out == ""
    assert strandline(cluster, "quota", "unset", "--user-default", "--client-id", "app", "consumer_byte_rate").code == 0
    assert strandline(cluster, "quota", "unset", "--ip", "10.0.0.1", "connection_creation_rate").code == 0
    assert "there are no quotas" in strandline(cluster, "quota", "list").err


def test_list_is_json_for_programs(cluster: ThreadedCluster) -> None:
    import json

    strandline(cluster, "quota", "set", "--user", "bob", "producer_byte_rate=1000")
    document = json.loads(strandline(cluster, "quota", "list", "--user", "bob", "--output", "json").out)
    assert document["quotas"] == [{"user": "bob", "client_id": None, "ip": None, "values": {"producer_byte_rate": 1000.0}}]
    strandline(cluster, "quota", "unset", "--user", "bob", "producer_byte_rate")


def test_dry_run_changes_nothing(cluster: ThreadedCluster) -> None:
    assert strandline(cluster, "quota", "set", "--user", "carol", "producer_byte_rate=1", "--dry-run").code == 0
    assert strandline(cluster, "quota", "list", "--user", "carol").out == ""


def test_options_of_kafka_configs_are_understood(cluster: ThreadedCluster) -> None:
    """Kafka's users type what they know."""
    words = ["--alter", "--client", "app", "--user-defaults", "--add-config", "producer_byte_rate=1024,consumer_byte_rate=2048"]
    assert strandline(cluster, "quota", "set", *words).code == 0
    assert "client-id app" in strandline(cluster, "quota", "list", "--describe", "--client", "app").out
    words = ["--client", "app", "--user-defaults", "--delete-config", "producer_byte_rate,consumer_byte_rate"]
    assert strandline(cluster, "quota", "unset", *words).code == 0


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["set", "producer_byte_rate=1"], "the owner of the quota is missing"),
        (["set", "--user", "a", "producer_byte_rate"], "KEY=VALUE"),
        (["set", "--user", "a", "producer_byte_rates=1"], "did you mean 'producer_byte_rate'"),
        (["set", "--user", "a", "producer_byte_rate=fast"], "takes bytes per second"),
        (["set", "--user", "a", "request_percentage=0"], "a number above 0"),
        (["set", "--user", "a", "--user-default", "request_percentage=1"], "exclude each other"),
        (["set", "--user", "User:a", "request_percentage=1"], "without its type"),
        (["set", "--ip", "10.0.0.1", "producer_byte_rate=1"], "producer_byte_rate"),
        (["unset", "--user", "a", "nonsense"], "unknown quota"),
    ],
)
def test_mistakes_are_one_sentence(cluster: ThreadedCluster, words: list[str], reason: str) -> None:
    found = strandline(cluster, "quota", *words)
    assert found.code != 0
    assert reason in one_sentence(found)
