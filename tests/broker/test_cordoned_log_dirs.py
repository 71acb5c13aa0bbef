"""Cordoned log directories on a broker (KIP-1066): which logs they get, and what the controller and operators see."""

from __future__ import annotations

from typing import Any

import pytest
from handled_request import HandledRequest
from replica_world import ReplicaWorld
from structlog.testing import capture_logs

from strandline.broker.config import BrokerConfig
from strandline.broker.process.lifecycle_core import Identity, LifecycleCore
from strandline.controller.metadata.features import SUPPORTED
from strandline.protocol.apis import ALTER_REPLICA_LOG_DIRS, DESCRIBE_LOG_DIRS
from strandline.protocol.errors import ErrorCode, UsageError
from strandline.protocol.messages.admin import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
    DescribeLogDirsRequest,
)

PATHS = ("/d1", "/d2")
FILE = {"node.id": 1, "cluster.id": "c", "log.dirs": "/d1,/d2", "controller.quorum.voters": "9@h:1"}


def placed(*cordoned: str, partitions: int = 4) -> list[list[str]]:
    """The logs in each directory, after a topic was created."""
    world = ReplicaWorld(1, paths=PATHS)
    world[1].log_dirs.cordon(cordoned)
    world.topic(replicas=(1,), partitions=partitions)
    return [[f"{log.topic}-{log.partition}" for log in log_dir.existing_logs()] for log_dir in world[1].log_dirs.dirs]


def test_a_cordoned_directory_gets_no_new_logs() -> None:
    assert [len(logs) for logs in placed()] == [2, 2]
    assert [len(logs) for logs in placed("/d1")] == [0, 4]
    assert [len(logs) for logs in placed("/d2/")] == [4, 0]


@pytest.mark.parametrize("cordoned", [("*",), ("/d1", "/d2")])
def test_a_replica_that_must_be_here_is_placed_all_the_same(cordoned: tuple[str, ...]) -> None:
    """The controller assigned it before it knew that all directories are cordoned."""
    assert [len(logs) for logs in placed(*cordoned)] == [2, 2]


def test_a_log_that_is_there_stays() -> None:
    world = ReplicaWorld(1, paths=PATHS)
    world.topic(replicas=(1,))
    world[1].log_dirs.cordon(["/d1"])
    assert world[1].p.log.dir == "/d1/orders-0"
    assert not world[1].produce("a", acks=1).answer.partitions[0].error_code


def test_no_replica_moves_to_a_cordoned_directory() -> None:
    world = ReplicaWorld(1, paths=PATHS)
    world.topic(replicas=(1,))
    node = world[1]

    def move(path: str) -> Any:
        dirs = [AlterReplicaLogDir(path, [AlterReplicaLogDirTopic("orders", [0])])]
        request = HandledRequest(AlterReplicaLogDirsRequest(dirs))
        node.handlers[ALTER_REPLICA_LOG_DIRS](request)  # type: ignore[arg-type]
        return request.answer.results[0].partitions[0]

    node.log_dirs.cordon(["*"])
    refused = move("/d2")
    assert (refused.error_code, refused.error_message) == (
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        "the log directory /d2 is cordoned (cordoned.log.dirs)",
    )
    assert move("/d1").error_code == 0, "it is there"
    node.log_dirs.cordon(["/d1"])
    assert move("/d2").error_code == 0


def test_describe_names_the_cordoned_directories() -> None:
    world = ReplicaWorld(1, paths=PATHS)
    world[1].log_dirs.cordon(["/d2"])
    request = HandledRequest(DescribeLogDirsRequest())
    world[1].handlers[DESCRIBE_LOG_DIRS](request)  # type: ignore[arg-type]
    assert {each.log_dir: each.is_cordoned for each in request.answer.results} == {"/d1": False, "/d2": True}


def test_a_path_that_is_no_directory_is_logged() -> None:
    """The controller cannot check a dynamic configuration with paths, because it does not know the brokers' directories."""
    log_dirs = ReplicaWorld(1, paths=PATHS)[1].log_dirs
    with capture_logs() as lines:
        log_dirs.cordon(["/d1", "/d9"])
        log_dirs.cordon(["/d1"])
    (line,) = [line for line in lines if line["event"] == "log_dir.cordoned"]
    assert (line["log_dirs"], line["unknown"]) == (["/d1"], ["/d9"])
    assert log_dirs.cordoned_ids == (log_dirs.dirs[0].directory_id,)


def test_the_controller_learns_it_with_registration_and_heartbeats() -> None:
    core = LifecycleCore(Identity(1, "c", b"i" * 16, (), None, (), -1, SUPPORTED), heartbeat_interval_ms=1, session_timeout_ms=9)
    assert core.heartbeat(0).cordoned_log_dirs == []
    core.cordoned_log_dirs = (b"1" * 16,)
    assert core.heartbeat(0).cordoned_log_dirs == core.registration().cordoned_log_dirs == [b"1" * 16]


def test_a_file_that_cordons_another_directory_is_refused() -> None:
    assert BrokerConfig.from_mapping({**FILE, "cordoned.log.dirs": "/d2"}).cordoned_log_dirs == ["/d2"]
    assert BrokerConfig.from_mapping({**FILE, "cordoned.log.dirs": "*"}).cordoned_log_dirs == ["*"]
    assert BrokerConfig.from_mapping(FILE).cordoned_log_dirs == []
    with pytest.raises(UsageError, match=r"config cordoned\.log\.dirs: /d3 is not one of log\.dirs"):
        BrokerConfig.from_mapping({**FILE, "cordoned.log.dirs": "/d3"})
