"""A broker's dynamic keys: which value counts, and which parts of the broker get a change."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from strandline.broker.config import BrokerConfig
from strandline.broker.dynamic_config import DynamicConfig
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.records import ConfigRecord
from strandline.protocol.messages.admin import RESOURCE_BROKER

FILE = {"node.id": 1, "cluster.id": "c", "log.dirs": "/d", "controller.quorum.voters": "9@h:1", "log.cleaner.threads": 2}


class Broker:
    """The dynamic configuration of broker 1, and the metadata."""

    def __init__(self, **more: Any) -> None:
        self.config = DynamicConfig(BrokerConfig.from_mapping({**FILE, **more}))
        self.image = MetadataImage.EMPTY
        self.heard: list[int] = []
        self.config.listen("log.cleaner.", lambda new: self.heard.append(new.log_cleaner_threads))

    def set(self, key: str, value: str | None, broker: str = "") -> None:
        delta = self.image.apply([ConfigRecord(RESOURCE_BROKER, broker, key, value)], self.image.offset + 1, 1)
        self.image = delta.image
        self.config.apply_delta(delta)


def test_value_of_the_broker_counts_before_that_of_all_brokers_and_that_before_the_file() -> None:
    broker = Broker()
    assert broker.config.current.log_cleaner_threads == 2
    broker.set("log.cleaner.threads", "3")
    broker.set("log.cleaner.threads", "4", broker="1")
    broker.set("log.cleaner.threads", "5", broker="2")
    broker.set("log.cleaner.threads", "6")
    broker.set("log.cleaner.threads", None, broker="1")
    broker.set("log.cleaner.threads", None)
    assert broker.heard == [3, 4, 6, 2]
    assert broker.config.current.values["log.cleaner.threads"] == 2


def test_only_the_listeners_of_a_changed_key_are_called() -> None:
    broker = Broker()
    broker.set("max.connections", "7")
    broker.set("log.cleaner.threads", "2")
    assert broker.heard == []
    broker.set("log.cleaner.backoff.ms", "7")
    assert broker.heard == [2]
    assert broker.config.current.max_connections == 7


def test_value_that_this_version_does_not_accept_is_ignored() -> None:
    """A newer version of the software may have stored the value."""
    broker = Broker()
    broker.set("log.cleaner.threads", "3")
    with capture_logs() as lines:
        broker.set("log.cleaner.threads", "many", broker="1")
    assert broker.config.current.log_cleaner_threads == 3
    assert [line["event"] for line in lines] == ["config.value_ignored"]


def test_change_is_logged_with_the_value_before() -> None:
    broker = Broker()
    with capture_logs() as lines:
        broker.set("log.roll.ms", "60000")
    (line,) = lines
    assert (line["event"], line["key"], line["value"], line["previous_value"]) == ("config.changed", "log.roll.ms", "60000", None)


def test_static_and_unknown_keys_in_the_metadata_change_nothing() -> None:
    broker = Broker()
    broker.set("log.cleaner.enable", "false")
    broker.set("a.key.of.the.future", "1")
    assert broker.config.current.log_cleaner_enable is True


@pytest.mark.parametrize("key", ["log.cleaner.enable", "log.cleaner", "nothing."])
def test_only_dynamic_keys_can_be_listened_to(key: str) -> None:
    with pytest.raises(AssertionError):
        Broker().config.listen(key, lambda new: None)
