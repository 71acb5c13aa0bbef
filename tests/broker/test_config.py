"""A broker's configuration: Kafka's keys in, typed values or one clear sentence out."""

from __future__ import annotations

from typing import Any, get_type_hints

import pytest

from strandline.broker.config import BrokerConfig, key_of
from strandline.controller.metadata.node_keys import BROKER_KEYS
from strandline.controller.metadata.voters import Voter
from strandline.protocol.errors import UsageError
from strandline.protocol.messages.common import Listener

MINIMAL: dict[str, Any] = {
    "node.id": 1,
    "cluster.id": "c1",
    "log.dirs": "/data",
    "controller.quorum.voters": "101@127.0.0.1:9192,102@[::1]:9193",
}


def test_a_minimal_config_has_kafkas_defaults() -> None:
    config = BrokerConfig.from_mapping(MINIMAL)
    assert config.voters == (Voter(101, "127.0.0.1", 9192), Voter(102, "::1", 9193))
    assert config.listeners == (Listener("PLAINTEXT", "127.0.0.1", 9092),)
    assert config.inter_broker_listener_name == "PLAINTEXT"
    assert config.replica_fetch_wait_max_ms == 500
    assert config.values["log.segment.bytes"] == 1 << 30
    assert config.topic_defaults == {}
    assert config.text("controlled.shutdown.enable") == "true"


def test_values_may_be_text_and_topic_defaults_are_the_given_ones() -> None:
    config = BrokerConfig.from_mapping({**MINIMAL, "node.id": "7", "min.insync.replicas": "2", "log.segment.bytes": 4096})
    assert config.node_id == 7
    assert config.topic_defaults == {"min.insync.replicas": 2, "log.segment.bytes": 4096}


def test_times_in_hours_and_minutes_are_defaults_of_topics_too() -> None:
    given = {"log.retention.hours": "2", "log.retention.minutes": 90, "log.roll.hours": 1, "log.roll.jitter.hours": 1}
    config = BrokerConfig.from_mapping({**MINIMAL, **given})
    assert config.topic_defaults == {**given, "log.retention.hours": 2}
    assert (BrokerConfig.from_mapping(MINIMAL).values["log.retention.hours"], config.values["log.retention.ms"]) == (168, None)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"node.id": "one"}, "node.id.*whole number"),
        ({"node.id": 101}, "node.id: 101 is the id of a controller"),
        ({"cluster.id": ""}, "cluster.id must not be empty"),
        ({"nodes.id": 1}, "unknown config key 'nodes.id'; did you mean 'node.id'"),
        ({"listeners": "127.0.0.1:9092"}, "not of the form NAME://host:port"),
        ({"listeners": "PLAINTEXT://127.0.0.1:99999"}, "not of the form NAME://host:port"),
        ({"listeners": "SSL://h:1"}, "ssl.keystore.location is missing: listener SSL has the security protocol SSL"),
        ({"listeners": "A://h:1,A://h:2"}, "two listeners of the same name"),
        (
            {"listeners": "PLAINTEXT://0.0.0.0:9092"},
            "clients and other nodes cannot connect to host '0.0.0.0'.*advertised.listeners",
        ),
        ({"advertised.listeners": "OTHER://h:1"}, "must name the same listeners"),
        ({"inter.broker.listener.name": "X"}, "there is no listener 'X'"),
        ({"log.dirs": "/a,/b,/a/"}, "config log.dirs names /a twice"),
        ({"log.dirs": "/a/b/c,/a//b"}, "config log.dirs: /a/b/c lies in /a//b; each directory must be separate"),
        ({"log.dirs": []}, "log.dirs must name at least one directory"),
        ({"log.retention.ms": 0}, "log.retention.ms: 0 is not allowed: must be -1"),
        ({"controller.quorum.voters": "127.0.0.1:9192"}, "not of the form id@host:port"),
        ({"controller.quorum.voters": "1@h:1,1@h:2"}, "names an id twice"),
        ({"broker.heartbeat.interval.ms": 5000}, "heartbeat.interval.ms must be smaller"),
        ({"log.retention.hours": 0}, "log.retention.hours: 0 is not allowed: must be -1"),
        ({"log.retention.minutes": 2**31}, "log.retention.minutes.*does not fit an int"),
        ({"log.roll.hours": 0}, "log.roll.hours.*must be at least 1"),
        ({"replica.fetch.wait.max.ms": 20_000}, "replica.fetch.wait.max.ms must not be larger"),
        ({"listeners": "KAFKA://h:1"}, "inter.broker.listener.name: 'KAFKA' is for Kafka's clients .*add one to listeners"),
        ({"listeners": "A://h:1,KAFKA://h:2", "inter.broker.listener.name": "KAFKA"}, "not for brokers; name another listener"),
        (
            {"kafka.listener.names": "KAFKA,OTHER", "listeners": "A://h:1,kafka://h:2"},
            "there is no listener 'OTHER' in listeners",
        ),
        ({"kafka.listener.names": "A", "listeners": "A://h:1"}, "'A' is for Kafka's clients"),
        ({"controller.listener.names": "Kafka"}, "controller.listener.names: 'Kafka' is for Kafka's clients"),
        ({"listeners": "A://h:1,KAFKA://h:2", "advertised.listeners": "A://h:1"}, "must name the same listeners"),
        (
            {"listeners": "A://h:1,KAFKA://h:2", "advertised.listeners": "A://x:1,KAFKA://x:1"},
            "A and KAFKA have the address x:1, and only one of them speaks Kafka's protocol",
        ),
    ],
)
def test_a_wrong_value_is_one_sentence_that_names_the_key(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        BrokerConfig.from_mapping({**MINIMAL, **change})


def test_a_listener_for_kafkas_clients_is_known_by_its_name() -> None:
    """The default name is KAFKA, in upper or lower case. If names are configured, each must be the name of a listener."""
    assert not BrokerConfig.from_mapping(MINIMAL).speaks_kafka("PLAINTEXT")
    config = BrokerConfig.from_mapping({**MINIMAL, "listeners": "kafka://h:1,CLIENTS://h:2"})
    assert (config.speaks_kafka("kafka"), config.speaks_kafka("CLIENTS")) == (True, False)
    assert config.inter_broker_listener_name == "CLIENTS"
    two = {"listeners": "A://h:1,B://h:2,C://h:3", "kafka.listener.names": "b,C"}
    assert [name for name in "ABC" if BrokerConfig.from_mapping({**MINIMAL, **two}).speaks_kafka(name)] == ["B", "C"]


def test_a_listener_for_kafkas_clients_needs_security_like_any_other() -> None:
    """It must be in the protocol map, and if it is open, the broker logs that at its start."""
    closed = {
        "listeners": "INTERNAL://h:1,KAFKA://h:2",
        "listener.security.protocol.map": "INTERNAL:SSL,CONTROLLER:SSL",
        "ssl.keystore.location": "/k.pem",
        "ssl.truststore.location": "/ca.pem",
        "ssl.client.auth": "required",
    }
    with pytest.raises(UsageError, match="no security protocol for listener KAFKA; add KAFKA:SASL_SSL"):
        BrokerConfig.from_mapping({**MINIMAL, **closed})
    opened = closed | {"listener.security.protocol.map": "INTERNAL:SSL,CONTROLLER:SSL,KAFKA:PLAINTEXT"}
    assert [one.name for one in BrokerConfig.from_mapping({**MINIMAL, **opened}).security.unauthenticated] == ["KAFKA"]


@pytest.mark.parametrize("missing", sorted(MINIMAL.keys() - {"cluster.id"}))
def test_a_missing_required_key_is_named(missing: str) -> None:
    with pytest.raises(UsageError, match=missing):
        BrokerConfig.from_mapping({k: v for k, v in MINIMAL.items() if k != missing})


def test_a_wildcard_listener_is_fine_when_an_address_is_advertised() -> None:
    config = BrokerConfig.from_mapping(
        {**MINIMAL, "listeners": "PLAINTEXT://0.0.0.0:0", "advertised.listeners": "PLAINTEXT://broker-1:9092"}
    )
    assert config.advertised_listeners == (Listener("PLAINTEXT", "broker-1", 9092),)


def test_every_key_has_a_meaning_and_stands_once() -> None:
    assert all(key.meaning for key in BROKER_KEYS)
    assert len({key.name for key in BROKER_KEYS}) == len(BROKER_KEYS)


TYPES = {"int": int, "long": int, "boolean": bool}


def test_a_field_that_is_named_after_a_key_has_its_type_and_value() -> None:
    config, hints = BrokerConfig.from_mapping(MINIMAL), get_type_hints(BrokerConfig)
    checked = [key for key in BROKER_KEYS if key.type in TYPES and key.name.replace(".", "_") in hints]
    assert len(checked) > 20
    for key in checked:
        field = key.name.replace(".", "_")
        assert key_of(field) == key.name
        assert hints[field] is TYPES[key.type], field
        assert getattr(config, field) == config.values[key.name]
