"""What makes a node ready, as plain functions of its state."""

from __future__ import annotations

from typing import Any

import pytest

from strandline.observe.health import BrokerState, Check, ControllerState, broker_checks, controller_checks

READY_BROKER = BrokerState(
    data_dir="/data",
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


def test_a_broker_that_is_in_order_passes_every_check() -> None:
    assert failed(broker_checks(READY_BROKER)) == {}


@pytest.mark.parametrize(
    ("change", "name", "words"),
    [
        ({"cluster_id": ""}, "cluster_id", "asks the controllers"),
        ({"disk_error": "no space left on device"}, "log_dirs", "/data is offline: no space left on device"),
        ({"registered": False}, "registered", "no controller has taken"),
        ({"caught_up": False}, "metadata", "has not caught up"),
        ({"metadata_age_ms": 3100}, "metadata", "as of 3.1 s ago"),
        ({"unfenced": False}, "unfenced", "not unfenced"),
    ],
    ids=str,
)
def test_what_is_wrong_with_a_broker_is_told_by_one_check(change: dict[str, Any], name: str, words: str) -> None:
    found = failed(broker_checks(READY_BROKER._replace(**change)))
    assert list(found) == [name]
    assert words in found[name]


def test_a_recovery_tells_how_far_it_is() -> None:
    """Whoever waits for it wants to know whether it moves."""
    state = READY_BROKER._replace(logs=1000, logs_recovered=12, recovered=False)
    assert failed(broker_checks(state))["recovery"] == "12 of 1000 logs recovered"


def test_a_broker_that_just_began_passes_nothing() -> None:
    assert all(not check.ok for check in broker_checks(BrokerState()))


def test_metadata_as_old_as_the_session_is_the_last_that_is_good_enough() -> None:
    """From then on the controllers may have fenced a broker that does not hear them."""
    assert failed(broker_checks(READY_BROKER._replace(metadata_age_ms=3000))) == {}
    assert failed(broker_checks(READY_BROKER._replace(metadata_age_ms=3001)))


def test_a_controller_that_follows_is_ready_and_so_is_the_active_one() -> None:
    assert failed(controller_checks(READY_CONTROLLER)) == {}
    assert failed(controller_checks(READY_CONTROLLER._replace(leader_id=101))) == {}


@pytest.mark.parametrize(
    ("change", "name", "words"),
    [
        ({"cluster_id": ""}, "cluster_id", "not known yet"),
        ({"listening": False}, "listening", "not yet"),
        ({"leader_id": -1}, "active_controller", "none is known"),
        ({"follows": False}, "metadata_log", "has not fetched"),
        ({"has_vote": False, "unheard": (102, 103)}, "vote", "waits to hear of 102, 103"),
        ({"high_watermark": 1051}, "metadata_log", "1001 records behind"),
    ],
    ids=str,
)
def test_what_is_wrong_with_a_controller_is_told_by_one_check(change: dict[str, Any], name: str, words: str) -> None:
    found = failed(controller_checks(READY_CONTROLLER._replace(**change)))
    assert list(found) == [name]
    assert words in found[name]


def test_a_controller_may_be_a_little_behind() -> None:
    """It always is, by what was appended this moment."""
    assert failed(controller_checks(READY_CONTROLLER._replace(high_watermark=1050))) == {}
