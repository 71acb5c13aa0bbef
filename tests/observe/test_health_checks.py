"""The readiness checks, as plain functions of a node's state."""

from __future__ import annotations

from typing import Any

import pytest

from strandline.controller.leader_balance import LateReturn
from strandline.observe.health import (
    BrokerState,
    Check,
    ControllerState,
    broker_checks,
    broker_warnings,
    controller_checks,
    controller_warnings,
)

READY_BROKER = BrokerState(
    data_dirs=("/data",),
    cluster_id="c",
    logs=3,
    logs_recovered=3,
    recovered=True,
    registered=True,
    broker_epoch=7,
    caught_up=True,
    metadata_offset=40,
    metadata_age_ms=600,
    metadata_age_ms_max=3000,
    unfenced=True,
)
READY_CONTROLLER = ControllerState(
    cluster_id="c",
    listening=True,
    address="127.0.0.1:9093",
    node_id=101,
    leader_id=102,
    epoch=4,
    has_vote=True,
    follows=True,
    log_end_offset=50,
    high_watermark=50,
)


def failed(checks: list[Check]) -> dict[str, str]:
    return {check.name: check.detail for check in checks if not check.ok}


def test_a_healthy_broker_passes_every_check() -> None:
    assert failed(broker_checks(READY_BROKER)) == {}


@pytest.mark.parametrize(
    ("change", "name", "words"),
    [
        ({"cluster_id": ""}, "cluster_id", "asks the controllers"),
        ({"offline_dirs": (("/data", "no space left"),)}, "log_dirs", "/data is offline: no space left"),
        ({"registered": False}, "registered", "no controller has accepted"),
        ({"caught_up": False}, "metadata", "has not caught up"),
        ({"metadata_age_ms": 3100}, "metadata", "as of 3.1 s ago"),
        ({"unfenced": False}, "unfenced", "not unfenced"),
    ],
    ids=str,
)
def test_each_problem_of_a_broker_fails_one_check(change: dict[str, Any], name: str, words: str) -> None:
    found = failed(broker_checks(READY_BROKER._replace(**change)))
    assert list(found) == [name]
    assert words in found[name]


def test_one_of_several_directories_that_fails_is_a_warning() -> None:
    """The broker serves the partitions of its other directories, so it stays ready."""
    state = READY_BROKER._replace(data_dirs=("/d1", "/d2"), offline_dirs=(("/d2", "input/output error"),))
    assert failed(broker_checks(state)) == {}
    (warning,) = broker_warnings(state)
    assert warning.startswith("data directory /d2 is offline, and its replicas are not served: input/output error")


def test_a_recovery_reports_its_progress() -> None:
    """An operator who waits for a recovery must see whether it advances."""
    state = READY_BROKER._replace(logs=1000, logs_recovered=12, recovered=False)
    assert failed(broker_checks(state))["recovery"] == "12 of 1000 logs recovered"


def test_a_new_broker_passes_only_running() -> None:
    assert all(not check.ok for check in broker_checks(BrokerState()))


def test_a_timestamp_that_blocks_retention_is_a_warning_and_the_broker_is_ready() -> None:
    state = READY_BROKER._replace(future_timestamps=(("orders", 3, 4_000_000_000_000), ("old", 0, 2**62)))
    assert failed(broker_checks(state)) == {}
    orders, old = broker_warnings(state)
    assert orders.startswith("orders-3: retention.ms deletes nothing")
    assert "has the timestamp 4000000000000 (2096-10-02); delete old records with `strandline topic trim`" in orders
    assert "after the year 9999" in old


def test_at_most_ten_warnings_are_sentences_of_their_own() -> None:
    state = READY_BROKER._replace(future_timestamps=tuple(("orders", index, 4_000_000_000_000) for index in range(12)))
    warnings = broker_warnings(state)
    assert (len(warnings), warnings[-1]) == (11, "2 more logs with a timestamp in the future")
    assert broker_warnings(READY_BROKER) == []


def test_metadata_older_than_the_session_is_not_ready() -> None:
    """After a session without contact the controllers may have fenced the broker."""
    assert failed(broker_checks(READY_BROKER._replace(metadata_age_ms=3000))) == {}
    assert failed(broker_checks(READY_BROKER._replace(metadata_age_ms=3001)))


def test_followers_and_the_active_controller_are_ready() -> None:
    assert failed(controller_checks(READY_CONTROLLER)) == {}
    assert failed(controller_checks(READY_CONTROLLER._replace(leader_id=101))) == {}


@pytest.mark.parametrize(
    ("change", "name", "words"),
    [
        ({"cluster_id": ""}, "cluster_id", "not known yet"),
        ({"listening": False}, "listening", "not yet"),
        ({"leader_id": -1}, "active_controller", "none is known"),
        ({"follows": False}, "metadata_log", "has not fetched"),
        ({"has_vote": False, "unheard": (102, 103)}, "vote", "waits for the state of 102, 103"),
        ({"high_watermark": 1051}, "metadata_log", "1001 records behind"),
    ],
    ids=str,
)
def test_each_problem_of_a_controller_fails_one_check(change: dict[str, Any], name: str, words: str) -> None:
    found = failed(controller_checks(READY_CONTROLLER._replace(**change)))
    assert list(found) == [name]
    assert words in found[name]


def test_a_small_lag_of_a_controller_is_ready() -> None:
    """A controller always lags by the records appended this moment."""
    assert failed(controller_checks(READY_CONTROLLER._replace(high_watermark=1050))) == {}


def test_a_broker_that_waits_long_for_its_leaders_is_a_warning() -> None:
    late = LateReturn(2, 3, 420.0, "it is not in the ISR of 1 of its 9 partitions")
    assert controller_warnings(ControllerState(late_returns=(late,))) == [
        "broker 2 does not lead 3 partitions whose preferred replica it is, for 7 minutes: it is not in the ISR of 1 of its 9 "
        "partitions; `strandline elect --preferred --all` moves those leaders that may move now"
    ]
    assert controller_warnings(ControllerState()) == []
    assert controller_warnings(ControllerState(late_returns=(late,) * 12))[-1] == "2 more brokers that wait for their leaders"
