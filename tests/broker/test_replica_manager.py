"""The replica manager: applying metadata, and what ends when a partition is removed."""

from __future__ import annotations

import errno

import pytest
from replica_world import NOW_MS, TOPIC, P, ReplicaWorld, code, config, log_values, remove_topic, values, want

from strandline.broker.metadata_applier import log_config
from strandline.broker.partition.partition import Role
from strandline.controller.metadata import config_keys
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.records import NO_LEADER, FeatureLevelRecord, PartitionChangeRecord
from strandline.protocol.errors import ErrorCode
from strandline.protocol.feature_names import METADATA_VERSION
from strandline.protocol.records.builder import encode_batch
from strandline.storage.files import DiskError
from strandline.storage.log.log import LogConfig


def test_each_replica_takes_its_role_from_the_metadata() -> None:
    world = ReplicaWorld(4)
    world.topic(replicas=(2, 3, 1), leader=2)
    assert [world[i].manager.partitions[P].role for i in (1, 2, 3)] == [Role.FOLLOWER, Role.LEADER, Role.FOLLOWER]
    assert world[4].manager.partitions == {}
    assert [world[i].fetchers.following for i in (1, 2, 3)] == [{P: 2}, {}, {P: 2}]


def test_a_new_leader_stops_fetching_before_it_leads() -> None:
    world = ReplicaWorld()
    world.topic()
    world.elect(2)
    assert world[2].fetchers.following == {}
    assert world[1].fetchers.following == {P: 2}


def test_an_empty_isr_ends_the_leadership_and_the_fetches() -> None:
    """A waiting produce gets an error that makes the client look for the leader, and no replica fetches until there is one. A
    member of the ISR from before is elected, with its records (KIP-966)."""
    world = ReplicaWorld()
    world.change(FeatureLevelRecord(METADATA_VERSION, 1))
    world.topic(min_isr=2)
    waiting = world[1].produce("a")
    world.replicate(2, 1)
    world.elect(NO_LEADER, ())
    assert code(waiting) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert [world[i][P].role for i in (1, 2, 3)] == [Role.FOLLOWER] * 3
    assert [world[i].fetchers.following for i in (1, 2, 3)] == [{}, {}, {}]
    assert {code(world[i].produce("b")) for i in (1, 2, 3)} == {ErrorCode.NOT_LEADER_OR_FOLLOWER}
    world.elect(2, (2,))
    assert log_values(world[2][P]) == [(0, b"a")]
    assert [world[i].fetchers.following for i in (1, 2, 3)] == [{P: 2}, {}, {P: 2}]


def test_a_deleted_topic_frees_its_name_at_once() -> None:
    """The next topic with this name has an empty log, and requests with the old id find nothing."""
    world = ReplicaWorld()
    world.topic(replicas=(1,))
    world[1].produce("old")
    world.change(remove_topic())
    assert code(world[1].fetch(want(0))) == ErrorCode.UNKNOWN_TOPIC_ID
    again = b"topic-id-number2"
    world.topic(replicas=(1,), topic_id=again)
    assert world[1][(again, 0)].log.log_end_offset == 0
    assert code(world[1].produce("x", key=P)) == ErrorCode.UNKNOWN_TOPIC_ID


def test_a_topic_recreated_in_one_delta_is_the_new_one() -> None:
    """Deletions are applied first (S35)."""
    world = ReplicaWorld()
    world.topic(replicas=(1,))
    world[1].produce("old")
    again = b"topic-id-number2"
    world.change(remove_topic(), at=())
    world.topic(replicas=(1,), topic_id=again)
    assert list(world[1].manager.partitions) == [(again, 0)]
    assert log_values(world[1][(again, 0)]) == []


def test_a_log_of_an_earlier_topic_of_the_name_is_set_aside_and_not_destroyed() -> None:
    """The broker was away while the topic was deleted and recreated (S35)."""
    world = ReplicaWorld()
    world.topic(replicas=(1,))
    world[1].produce("old")
    world[1].log_dir.close()
    files = world[1].files
    world.image = MetadataImage.EMPTY
    again = b"topic-id-number2"
    world.add_node(1, files)
    world.topic(replicas=(1,), topic_id=again)
    assert log_values(world[1][(again, 0)]) == []
    assert [name for name in files.list("/data") if name.endswith("-stray")] == [f"orders-0.{TOPIC.hex()}-stray"]


def test_a_replica_that_was_moved_away_is_deleted() -> None:
    world = ReplicaWorld()
    world.topic()
    world.change(PartitionChangeRecord(*P, isr=(1, 2), replicas=(1, 2)))
    assert world[3].manager.partitions == {}
    assert world[3].fetchers.following == {}
    assert code(world[3].produce("a")) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert [name for name in world[3].files.list("/data") if name.startswith("orders")] == []


def test_a_changed_setting_reaches_the_logs_of_its_topic_and_no_other() -> None:
    world = ReplicaWorld(1)
    world.topic(replicas=(1,))
    world.topic(replicas=(1,), topic_id=b"topic-id-number2", name="others")
    world.change(config("orders", "segment.bytes", "5000"), config("orders", "min.insync.replicas", "2"))
    changed, other = world[1][P], world[1][(b"topic-id-number2", 0)]
    assert (changed.log.config.segment_bytes, changed.min_insync_replicas) == (5000, 2)
    assert (other.log.config.segment_bytes, other.min_insync_replicas) == (1 << 30, 1)


def test_the_time_keys_of_a_topic_reach_its_log() -> None:
    world = ReplicaWorld(1)
    world.topic(replicas=(1,))
    names = ("message.timestamp.before.max.ms", "message.timestamp.after.max.ms", "segment.jitter.ms")
    world.change(*(config("orders", name, str(number)) for number, name in enumerate(names, 1)))
    found = world[1][P].log.config
    assert (found.message_timestamp_before_max_ms, found.message_timestamp_after_max_ms, found.segment_jitter_ms) == (1, 2, 3)


def test_an_appending_log_draws_its_jitter_from_the_brokers_random() -> None:
    world = ReplicaWorld(1)
    world.topic(replicas=(1,))
    world.change(config("orders", "segment.jitter.ms", "1000000"))
    world[1].produce("a")
    world[1].produce("b")
    assert 0 < (world[1][P].log.segments[-1].roll_jitter_ms or 0) < 1_000_000


@pytest.mark.parametrize(("key", "away_ms"), [("before", -1000), ("after", 1000)])
def test_a_topic_refuses_timestamps_beyond_its_limits(key: str, away_ms: int) -> None:
    world = ReplicaWorld(1)
    world.topic(replicas=(1,))

    def produce() -> ErrorCode:
        return code(world[1].produce(bytearray(encode_batch([(None, b"a", [], NOW_MS + away_ms)]))))

    assert produce() == ErrorCode.NONE
    world.change(config("orders", f"message.timestamp.{key}.max.ms", "999"))
    assert produce() == ErrorCode.INVALID_TIMESTAMP
    world.change(config("orders", f"message.timestamp.{key}.max.ms", "1000"))
    assert produce() == ErrorCode.NONE


def test_the_default_settings_of_a_topic_are_those_of_a_log() -> None:
    assert log_config(config_keys.parse(config_keys.TOPIC_CONFIGS, {})) == LogConfig()


def test_a_restarted_leader_continues_its_log() -> None:
    world = ReplicaWorld()
    world.topic(replicas=(1,))
    world[1].produce("a", "b")
    world[1].log_dir.close()
    files = world[1].files
    node = world.add_node(1, files)
    world.catch_up(1)
    assert values(node.fetch(want(0, epoch=1))) == [b"a", b"b"]


def test_a_failed_disk_ends_everything_that_was_on_it_and_nothing_else_dies() -> None:
    world = ReplicaWorld()
    world.topic()
    parked = world[1].fetch(want(0, epoch=1), max_wait_ms=10_000)
    waiting = world[1].produce("a", timeout_ms=10_000)
    world[1].manager.on_disk_error(DiskError("write", "/data/orders-0/00000000000000000000.log", errno.EIO))
    world.loop.end_turn()
    assert code(parked) == code(waiting) == ErrorCode.KAFKA_STORAGE_ERROR
    assert code(world[1].fetch(want(0, epoch=1))) == ErrorCode.KAFKA_STORAGE_ERROR
    assert world[1].list_offsets(-1).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert world[1].log_dir.offline is not None
    world.elect(2)
    assert world[2].p.role is Role.LEADER


def test_a_log_that_cannot_be_opened_takes_the_directory_offline() -> None:
    failed: list[object] = []
    world = ReplicaWorld(1, on_log_dir_failed=lambda log_dir, had_leaders: failed.append(log_dir))
    world[1].files.fail_next("write", "*", errno.ENOSPC, times=99)
    world.topic(replicas=(1,))
    assert len(failed) == 1
    assert code(world[1].produce("a")) == ErrorCode.KAFKA_STORAGE_ERROR


def test_a_shutdown_answers_everyone_and_leaves_no_timer() -> None:
    world = ReplicaWorld()
    world.topic()
    parked = [world[1].fetch(want(0, epoch=1), max_wait_ms=10_000) for _ in range(3)]
    waiting = [world[1].produce("a", timeout_ms=10_000) for _ in range(3)]
    world[1].manager.shutdown()
    assert all(request.is_answered for request in parked + waiting)
    world.loop.end_turn()
    assert world.loop.armed == []
    assert len(world[1].manager.purgatory) == 0


def test_a_shutdown_acknowledges_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first answer raises an exception, so the requests behind it do not complete in the usual way. Still, none is a
    success."""
    world = ReplicaWorld()
    world.topic()
    first, second = (world[1].produce("a", timeout_ms=10_000) for _ in range(2))

    def broken(body: object, records: object = None) -> None:
        raise RuntimeError("cannot be encoded")

    monkeypatch.setattr(first, "reply", broken)
    world[1].manager.shutdown()
    assert code(second) != ErrorCode.NONE


def test_high_watermarks_survive_a_clean_restart() -> None:
    world = ReplicaWorld()
    world.topic(replicas=(1, 2))
    world[1].produce("a", "b", acks=1)
    world[1].said_by(2, 2)
    world[1].manager.checkpoint_high_watermarks()
    world[1].files.crash(lossy=False)
    node = world.add_node(1, world[1].files)
    world.catch_up(1)
    assert node.p.log.high_watermark == 2


def test_metadata_of_many_partitions_is_applied_partition_by_partition() -> None:
    """A partition whose log cannot be opened must not keep the others from their roles."""
    world = ReplicaWorld(1)
    world.topic(replicas=(1,), partitions=3)
    partition = world[1].manager.partitions.pop((TOPIC, 1))
    world[1].log_dir.logs.pop(("orders", 1))
    original = world[1].log_dir.open_log

    def refuse_one(topic: str, index: int, *rest: object, **more: object) -> object:
        from strandline.protocol.errors import BrokerError

        if index == 1:
            raise BrokerError(ErrorCode.INVALID_TOPIC_EXCEPTION)
        return original(topic, index, *rest, **more)  # type: ignore[arg-type]

    world[1].log_dir.open_log = refuse_one  # type: ignore[method-assign, assignment]
    world.change(*[PartitionChangeRecord(TOPIC, i, leader=1) for i in range(3)])
    assert partition.key not in world[1].manager.partitions
    assert [world[1][(TOPIC, i)].leader_epoch for i in (0, 2)] == [2, 2]


@pytest.mark.parametrize(("elr", "reported"), [((), []), ((2,), [P])])
def test_added_replica_that_was_eligible_reports_the_loss_of_its_log(elr: tuple[int, ...], reported: list[object]) -> None:
    """A reassignment adds broker 2. At first it has no log, and that is no loss. But if it is in the ELR, it has been in the ISR:
    if it returned without its log and did not report it, it would be elected without the committed records."""
    lost: list[object] = []
    world = ReplicaWorld(2, on_records_lost=lost.append)
    world.change(FeatureLevelRecord(METADATA_VERSION, 1))
    world.topic(replicas=(1,))
    adding = PartitionChangeRecord(
        *P,
        leader=1,
        isr=(1,),
        replicas=(2, 1),
        adding_replicas=(2,),
        removing_replicas=(1,),
        original_replicas=(1,),
        eligible_leader_replicas=elr or None,
    )
    world.change(adding, at=[1])
    lost.clear()
    world.add_node(2)
    world.catch_up(2)
    assert world[2].leo == 0
    assert lost == reported
