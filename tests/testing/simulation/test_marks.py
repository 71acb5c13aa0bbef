"""Every mark can be counted. A mark that cannot would fail every sweep, or count another event.

A *drive* makes production code reach certain marks, as directly as possible, and lists them. Marks that need a whole cluster are
left to the story at the end: a simulated day.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import replace
from errno import EIO, ENOSPC
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import controller_world
import pytest
from handled_request import HandledRequest
from raft_bench import Bench, fetch_response, log_of, sends
from replica_world import LAG_S, P, ReplicaWorld, commit, deliver, refuse, register, remove_topic, want
from replica_world import batch as record_batch
from storage_kit import DIR, NOW_MS, fill, open_log

from strandline.broker.fetch.fetch_session import FetchSessionCache
from strandline.broker.partition.alter_partition import AlterPartitionItem, AlterPartitionManager, AlterPartitionQueue
from strandline.broker.process.pause_detector import PauseDetector, while_trusted
from strandline.broker.process.quorum_observer import QuorumObserver
from strandline.broker.purgatory import DelayedOperation
from strandline.broker.replica_manager import ReplicaConfig
from strandline.broker.replication.fetcher import FetcherCore, FetcherSettings
from strandline.client.cluster.cluster import Cluster
from strandline.client.consumer.fetch_session import FetchSession
from strandline.client.consumer.fetcher import Fetcher
from strandline.client.consumer.partition_state import EARLIEST
from strandline.client.consumer.preferred_replicas import PreferredReplicas
from strandline.client.consumer.records import TopicPartition
from strandline.client.consumer.subscription import Subscription
from strandline.client.errors import DeliveryTimeout
from strandline.client.options import ConsumerOptions, parse_options
from strandline.client.producer.batch import Batch
from strandline.client.producer.partition_queue import PartitionQueue
from strandline.controller import feature_upgrade
from strandline.controller.feature_control import NodeLevels
from strandline.controller.metadata.features import LEVEL_0_ONLY, SUPPORTED
from strandline.controller.raft.election import ElectionState
from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.feature_names import METADATA_VERSION
from strandline.protocol.messages.admin import (
    ElectLeadersRequest,
    FeatureUpdate,
    MetadataBroker,
    MetadataPartition,
    MetadataRequest,
    MetadataResponse,
    MetadataTopic,
    UpdateFeaturesRequest,
)
from strandline.protocol.messages.cluster import (
    AlterPartitionPartitionResponse,
    AlterPartitionResponse,
    EndQuorumEpochRequest,
    VoteResponse,
)
from strandline.protocol.messages.common import EpochEndOffset
from strandline.protocol.messages.data import (
    EpochEndOffsetPartition,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    ProducePartition,
    ProduceRequest,
)
from strandline.protocol.partitions import TopicIdPartition
from strandline.protocol.records.batch import read_header
from strandline.storage.directory.log_dir import LogDir
from strandline.storage.disk import DiskError
from strandline.storage.log.log import LogConfig
from strandline.storage.log.producer_state import ProducerStates
from strandline.storage.memory.memory_files import MemoryFiles
from strandline.testing.simulation.cluster.cluster import SimCluster
from strandline.testing.simulation.kernel.trace import Trace, captured_logs
from strandline.testing.simulation.kernel.world import World
from strandline.testing.simulation.observation.marks import MARKS, RARE, SCENARIO, SWEEP, Mark, Marks, missing, total
from strandline.testing.simulation.observation.watching import OnCall, OnEvent, Sight, Watch, resolve
from strandline.testing.simulation.scenarios import run_scenario

ROOT = Path(__file__).parents[3]
C = ErrorCode

DRIVES: dict[Callable[[], object], tuple[str, ...]] = {}


def drive(*marks: str) -> Callable[[Callable[[], object]], Callable[[], object]]:
    def enter(function: Callable[[], object]) -> Callable[[], object]:
        DRIVES[function] = marks
        return function

    return enter


# -- the disk, and logs -----------------------------------------------------------------------------------------------

SMALL = LogConfig(segment_bytes=300, index_interval_bytes=60)


@drive("disk.full", "disk.read_failed", "disk.write_failed", "disk.fsync_failed")
def a_disk_fails() -> None:
    files = MemoryFiles()
    file = files.open("/x", create=True)
    file.append([b"abc"])
    for operation, errno, act in (
        ("write", ENOSPC, lambda: file.append([b"d"])),
        ("write", EIO, lambda: file.append([b"d"])),
        ("read", EIO, lambda: file.pread(1, 0)),
        ("fsync", EIO, file.fsync),
    ):
        files.fail_next(operation, "*", errno)
        with pytest.raises(DiskError):
            act()


@drive("log.rolled", "log.start_moved", "log.segments_deleted")
def a_log_grows_and_lets_go() -> None:
    log = open_log(MemoryFiles(), config=replace(SMALL, retention_bytes=300))
    fill(log, 20)
    log.update_high_watermark(log.log_end_offset)
    log.increment_log_start_offset(2)
    log.delete_old_segments(NOW_MS)


@drive(
    "log.tail_cut",
    "log.checkpoint_clamped",
    "log.index_rebuilt",
    "log.epochs_found_again",
    "log.producers_replayed",
    "log.damaged",
)
def a_log_comes_back_from_a_bad_disk() -> None:
    files = MemoryFiles()
    log = open_log(files, config=SMALL)
    for n in range(4):
        log.append_as_leader(record_batch("v" * 60, producer_id=7, producer_epoch=0, sequence=n), 0, NOW_MS)
    log.roll(NOW_MS)
    fill(log, 1)
    log.abandon()
    first, last = (f"{DIR}/{base:020d}" for base in (log.segments[0].base_offset, log.segments[-1].base_offset))
    files.write(last + ".log", files.read(last + ".log")[:-3])
    files.remove(f"{DIR}/leader-epoch-checkpoint")
    open_log(files, config=SMALL, high_watermark=99).close()
    files.write(first + ".index", b"nonsense")
    again = open_log(files, config=SMALL, clean=True)
    again.offset_for_timestamp(0)
    again.mark_corrupt(0)


@drive("follower.truncated_epochs_only")
def a_log_whose_last_epoch_wrote_nothing_is_cut_at_its_end() -> None:
    log = open_log(MemoryFiles())
    fill(log, 1)
    log.assign_epoch_start_offset(3, log.log_end_offset)
    log.truncate_to(log.log_end_offset)


@drive("log_dir.checkpoint_damaged", "log.stray")
def a_directory_with_a_bad_checkpoint_and_a_stray_log() -> None:
    files = MemoryFiles()
    LogDir.open(files, "/data", node_id=1, cluster_id="c", random=Random(1)).close(clean=False)
    files.write("/data/replication-offset-checkpoint", b"nonsense")
    files.make_dirs("/data/orders-0")
    LogDir.open(files, "/data", node_id=1, cluster_id="c", random=Random(1))


# -- partitions: leaders ----------------------------------------------------------------------------------------------


def leading(*, min_isr: int = 1, isr: tuple[int, ...] = (1, 2, 3)) -> ReplicaWorld:
    world = ReplicaWorld()
    world.topic(min_isr=min_isr, isr=isr)
    return world


@drive("produce.parked", "produce.acked", "produce.timed_out", "produce.not_leader", "produce.lost_leader")
def produces_wait() -> None:
    world = leading()
    world[1].produce("a")
    world.replicate(2, 1), world.replicate(3, 1)
    world.replicate(2, 1), world.replicate(3, 1)
    world[1].produce("b", timeout_ms=10)
    world.loop.advance(1)
    world[2].produce("c")
    world[1].produce("d")
    world.elect(2)


@drive(
    "produce.not_enough_replicas",
    "produce.not_enough_after_append",
    "hw.waits_for_min_isr",
    "isr.changed_by_controller",
    "isr.shrunk",
)
def the_isr_falls_below_the_minimum() -> None:
    world = leading(min_isr=2, isr=(1, 2))
    world[1].produce("a")
    world.set_isr(1)
    world[1].produce("b")
    world[1].produce("c", acks=1)
    leader_state = world[1].p.leader_state
    assert leader_state is not None
    leader_state.maybe_increment_high_watermark()


@drive("produce.duplicate", "produce.out_of_order", "produce.old_producer_epoch")
def producers_send_again() -> None:
    node = leading()[1]
    for epoch, sequence in ((1, 0), (1, 0), (1, 7), (0, 1)):
        node.produce(record_batch("a", producer_id=7, producer_epoch=epoch, sequence=sequence), acks=1)


@drive("broker.pause_detected", "broker.produce_refused_after_pause")
def a_broker_wakes_up() -> None:
    detector = PauseDetector(limit_ms=1000, heard_at=lambda: 0.0)
    detector.tick(1.0)
    request = HandledRequest(ProduceRequest(None, 1, 1000, [ProducePartition(*P)], [memoryview(b"")]))
    request.received_at = 9.0  # type: ignore[attr-defined]
    while_trusted(detector, lambda _: None)(request)  # type: ignore[arg-type]
    assert request.answer.partitions[0].error_code == C.NOT_LEADER_OR_FOLLOWER


@drive("isr.member_lagged", "hw.waits_for_removed", "isr.refused_ineligible", "isr.refused_stale")
def a_member_lags() -> None:
    world = leading()
    leader = world[1]
    leader.produce("a", acks=1)
    leader.said_by(2, 1)
    leader.said_by(3, 0)
    world.loop.advance(LAG_S + 1)
    leader.said_by(2, 1)
    leader.manager.maybe_shrink_isrs()
    refuse(leader.alter.take(), C.INELIGIBLE_REPLICA)
    leader.manager.maybe_shrink_isrs()
    refuse(leader.alter.take(), C.INVALID_UPDATE_VERSION)


@drive("isr.expanded", "hw.waits_for_added", "hw.waits_for_candidate")
def a_follower_joins() -> None:
    world = leading(isr=(1, 2))
    leader = world[1]
    leader.said_by(3, 0)
    proposal = leader.alter.take()
    leader.produce("a", acks=1)
    leader.said_by(2, 1)
    commit(proposal)
    outside = leading(isr=(1, 2))
    outside[1].alter.is_busy = True
    outside[1].said_by(3, 0)
    outside[1].produce("a", acks=1)
    outside[1].said_by(2, 1)


@drive("isr.waits_for_epoch_start", "hw.unknown_to_new_leader", "hw.latest_not_available")
def a_new_leader_does_not_know_what_is_committed() -> None:
    world = leading(isr=(1, 2))
    world[1].produce("a", "b", acks=1)
    world.replicate(2, 1)
    world.elect(2, (1, 2))
    world[2].said_by(3, 0, epoch=2)
    assert world[2].list_offsets(-1).error_code == C.OFFSET_NOT_AVAILABLE


@drive("isr.member_lost_records")
def a_member_asks_for_what_it_had() -> None:
    leader = leading()[1]
    leader.produce("a", "b", acks=1)
    for offset in (2, 0):
        leader.said_by(2, offset), leader.said_by(3, 2)


@drive("isr.stale_answer_ignored")
def an_answer_to_a_proposal_that_metadata_has_superseded() -> None:
    queue = AlterPartitionQueue()
    queue.submit(AlterPartitionItem(P[0], 0, 1, 1, ((1, 11),), lambda answer, is_doubtful: None))
    queue.next_request(1, 11)
    queue.cancel(P)
    queue.on_response(AlterPartitionResponse(0, [AlterPartitionPartitionResponse(*P)]))


@drive("purgatory.completed_before")
def a_parked_request_is_completed_twice() -> None:
    class Parked(DelayedOperation):
        def on_complete(self) -> None: ...

    parked = Parked()
    assert (parked.complete(), parked.complete()) == (True, False)


# -- partitions: fetches ----------------------------------------------------------------------------------------------


@drive(
    "fetch.epoch_fenced",
    "fetch.epoch_unknown",
    "fetch.not_leader",
    "fetch.out_of_range",
    "fetch.diverging",
    "fetch.old_incarnation",
)
def fetches_are_refused() -> None:
    world = ReplicaWorld()
    world.topic(epoch=4)
    leader = world[1]
    leader.produce("a", acks=1)
    for epoch in (3, 5):
        leader.said_by(2, 0, epoch=epoch)
    world[2].said_by(3, 0, epoch=4)
    leader.fetch(want(99))
    leader.fetch(want(9, epoch=4, last_epoch=4), replica_id=2, replica_epoch=12)
    leader.said_by(2, 0, broker_epoch=1)


@drive("fetch.session_opened", "fetch.session_continued", "fetch.woken", "fetch.expired", "fetch.ahead_of_hw")
def a_session_waits_for_news() -> None:
    world = leading()
    leader = world[1]
    opened = leader.fetch(want(0, epoch=1), replica_id=2, replica_epoch=12, session_epoch=0).answer
    more: dict[str, Any] = {"replica_id": 2, "replica_epoch": 12, "session_id": opened.session_id, "max_wait_ms": 100}
    parked = leader.fetch(session_epoch=1, **more)
    leader.produce("a", acks=1)
    assert parked.is_answered
    leader.fetch(want(1, epoch=1, last_epoch=1), session_epoch=2, **more)
    world.loop.advance(1)
    leader.fetch(want(1, epoch=1))


@drive("fetch.nominated", "fetch.from_follower", "fetch.readers_reported", "consumer.left_preferred_replica")
def a_consumer_reads_in_its_rack() -> None:
    world = ReplicaWorld(2, config=ReplicaConfig(replica_selector_class="rack-aware"))
    world.change(*(register(node, rack=rack) for node, rack in ((1, "a"), (2, "b"))))
    world.topic(replicas=(1, 2))
    world.replicate(2, 1)
    fetcher = FetcherCore(broker_id=2, broker_epoch=lambda: 12, settings=FetcherSettings(), on_disk_error=print)
    fetcher.add(world[2].p)
    world[1].fetch(want(0, epoch=1), rack_id="b")
    world[2].fetch(want(0, epoch=1), rack_id="b")
    fetcher.on_reader(P)
    PreferredReplicas[TopicIdPartition](1.0, 1.0).fail(P, 0.0)


@drive("fetch.session_evicted", "fetch.session_unknown", "fetch.session_epoch_wrong")
def a_small_cache_of_sessions() -> None:
    cache = FetchSessionCache(Random(1), slots=1)

    def ask(session_id: int, epoch: int, now: float) -> int:
        body = FetchRequest(-1, -1, 0, 1, 1 << 20, 0, session_id, epoch, [want(0)] if epoch == 0 else [], [])
        return cache.session_for(body, now)[0].id

    first = ask(0, 0, 0.0)
    with pytest.raises(BrokerError):
        ask(first, 7, 1.0)
    ask(0, 0, 1000.0)
    with pytest.raises(BrokerError):
        ask(first, 1, 1001.0)


# -- partitions: followers --------------------------------------------------------------------------------------------


@drive("follower.truncated", "follower.truncated_below_hw", "follower.truncated_to_leader_end", "follower.restarted")
def followers_truncate() -> None:
    world = leading()
    world[1].produce("a", "b", acks=1)
    world.replicate(2, 1)
    world.elect(3)
    world[3].produce("c", acks=1)
    world.replicate(2, 3)
    world.replicate(2, 3)
    follower = world[2].p
    follower.log.update_high_watermark(1)
    follower.truncate_to_leader_end(follower.fetch_position(), 0)
    follower.truncate_fully_and_start_at(follower.fetch_position(), 5)


@drive("follower.stale_response", "follower.newer_epoch_ignored")
def responses_come_late() -> None:
    world = leading()
    world[1].produce("a", acks=1)
    position, held = world[2].p.fetch_position(), world[1].fetch_from(world[2])
    world.replicate(2, 1)
    assert not deliver(world[2].p, position, held)
    world.elect(1, at=(1, 3))
    world[1].produce("b", acks=1)
    position = world[2].p.fetch_position()
    newer = world[1].fetch(want(1, epoch=2, last_epoch=1), replica_id=3, replica_epoch=13)
    deliver(world[2].p, position, newer)


@drive("follower.leader_returned", "fetch.of_earlier_leadership")
def a_leader_returns_while_a_follower_gets_no_metadata() -> None:
    world = leading()
    world[1].produce("a", acks=1)
    world.elect(3, at=(1, 3))
    world.elect(1, at=(1, 3))
    world[1].fetch_from(world[2])
    world.catch_up(2)


@drive("follower.late_response")
def a_follower_fetches_again_before_the_first_response() -> None:
    world = leading()
    fetcher = FetcherCore(broker_id=2, broker_epoch=lambda: 12, settings=FetcherSettings(), on_disk_error=print)
    fetcher.add(world[2].p)
    plan = fetcher.plan(0.0)
    assert plan is not None
    fetcher.add(world[2].p)
    fetcher.on_response(plan, FetchResponse(0, 0, 5, [FetchPartitionResponse(*P)], [memoryview(b"")]), 0.0)


@drive("isr.answer_lost")
def a_proposal_gets_no_answer() -> None:
    queue = AlterPartitionQueue()
    queue.submit(AlterPartitionItem(*P, 1, 1, ((1, 11),), lambda answer, is_doubtful: None))
    queue.next_request(1, 11)
    queue.on_lost()


@drive("follower.repaired")
def a_follower_with_a_damaged_log_takes_it_from_its_leader() -> None:
    world = leading(isr=(1, 3))
    world[1].produce("a", acks=1)
    world.replicate(2, 1)
    world[2].p.log.mark_corrupt(0)
    world.replicate(2, 1)


@drive("topic.deleted", "log_dir.offline")
def logs_go() -> None:
    world = leading()
    world[2].manager.on_disk_error(DiskError("write", "/data/x", EIO))
    world.change(remove_topic(), at=(1,))


# -- the controller ---------------------------------------------------------------------------------------------------


@drive("metadata.upgraded", "metadata.upgrade_refused")
def an_upgrade_is_refused_while_a_voter_is_silent() -> None:
    image = controller_world.ControllerWorld(levels=LEVEL_0_ONLY).image
    request = UpdateFeaturesRequest(1000, [FeatureUpdate(METADATA_VERSION, 1)])
    for voter_ids in ([102], []):
        feature_upgrade.update_features(image, SUPPORTED, voter_ids, NodeLevels(), request)


@drive(
    "election.fencing", "election.none_eligible", "election.last_member_returned", "election.preferred",
    "election.controlled_shutdown", "broker.registered_again", "broker.duplicate_refused",
    "broker.cluster_id_refused", "broker.epoch_stale",
)  # fmt: skip
def brokers_come_and_go() -> None:
    world = controller_world.ControllerWorld(brokers=2)
    world.create("orders", [(1, 2)])
    world.kill_broker(1)
    world.kill_broker(2)
    world.start_broker(2, 2)
    world.start_broker(1, 2)
    world.alter("orders", (2, 1))
    world.call(apis.ELECT_LEADERS, ElectLeadersRequest(0, None, 1000))
    world.register(1, 2)
    for incarnation, cluster in ((3, controller_world.CLUSTER), (2, "another")):
        with pytest.raises(BrokerError):
            world.call(apis.BROKER_REGISTRATION, controller_world.registration(1, incarnation, cluster=cluster))
    with pytest.raises(BrokerError):
        world.heartbeat(1, epoch=1)
    world.heartbeat(1, want_shut_down=True)


@drive("broker.fenced_by_session", "broker.fenced_by_probe", "raft.decisions_refused")
def sessions_end() -> None:
    world = controller_world.ControllerWorld(brokers=2)
    world.controller.fence(1, world.epoch(1), "it has no connection to this controller, and its port refuses connections")
    world.now += 60
    world.controller.fence_expired()
    world.controller.on_resign(1)


@drive("raft.pre_vote_refused", "raft.vote_granted", "raft.second_vote_refused", "raft.shorter_log_refused")
def votes_are_given_and_refused() -> None:
    bench = Bench(1, election=ElectionState(1), log=log_of(1))
    bench.ask_vote(2, 5, (0, 0))
    bench.ask_vote(2, 6, (1, 1))
    bench.ask_vote(3, 6, (1, 1))
    leader = Bench(1, election=ElectionState(1), log=log_of(1))
    leader.become_leader()
    leader.ask_vote(2, leader.node.state.epoch, (1, 1), pre_vote=True)


@drive("raft.pre_vote_lost", "raft.election_lost", "raft.leader_lost", "raft.leader_restarted")
def elections_are_lost() -> None:
    bench = Bench(1, election=ElectionState(1), log=log_of(1))
    asked = sends(bench.advance(0.2), apis.VOTE)
    for send in asked:
        bench.respond(send, VoteResponse(0, -1, bench.node.state.epoch, False))
    bench.advance(5)
    candidate = Bench(1, election=ElectionState(1), log=log_of(1))
    asked = sends(candidate.advance(0.2), apis.VOTE)
    for send in asked:
        candidate.respond(send, VoteResponse(0, -1, candidate.node.state.epoch, True))
    candidate.begin_epoch(2, candidate.node.state.epoch + 1)
    Bench(1, election=ElectionState(3, leader_id=1, voted_id=1), log=log_of(1))
    follower = Bench(1, election=ElectionState(1), log=log_of(1))
    fetch = follower.follow(2, 2)
    follower.node.on_failure(fetch, C.NETWORK_EXCEPTION, follower.now)


@drive("raft.resigned_without_majority", "raft.late_fetch_refused", "raft.commit_waits_for_own_epoch")
def a_leader_is_alone() -> None:
    bench = Bench(1, election=ElectionState(1), log=log_of(1, 1))
    bench.become_leader()
    bench.fetch(2, bench.node.state.epoch, 2, 1, session=7)
    bench.fetch(2, bench.node.state.epoch, 2, 1, session=6)
    bench.advance(60)


@drive("raft.log_truncated", "raft.handed_over")
def a_follower_gets_a_diverging_epoch_and_the_end_of_the_epoch() -> None:
    bench = Bench(1, election=ElectionState(1), log=log_of(1, 1))
    fetch = bench.follow(2, 2)
    answer = fetch_response(2, 2)
    answer.partitions[0].diverging_epoch = EpochEndOffset(1, 1)
    bench.respond(fetch, answer)
    bench.request(apis.END_QUORUM_EPOCH, EndQuorumEpochRequest("c", 2, 2, [1, 3]))


@drive("raft.voter_recovered")
def a_voter_recovers() -> None:
    bench = Bench(1, election=ElectionState(recovering=True))
    for send in sends(bench.advance(1), apis.VOTE):
        bench.respond(send, VoteResponse(0, -1, 0, False))


# -- clients ----------------------------------------------------------------------------------------------------------


@drive("producer.retried", "producer.recovered", "producer.epoch_bumped", "producer.left_deposed_leader")
def a_producers_batch_fails() -> None:
    queue = PartitionQueue("orders", 0, idempotent=True)
    queue.set_producer_id(7, 0)
    batch = Batch("orders", 0, 1000, 1000, 0.0, 100.0, NOW_MS)
    batch.append(None, b"v", None, None, 1)
    queue.ready.append(batch)
    for code in (C.NETWORK_EXCEPTION, C.OUT_OF_ORDER_SEQUENCE_NUMBER):
        assert queue.take(0.0, partial=True) is batch
        queue.on_failed(batch, code, 0.0)
    queue.take(0.0, partial=True)
    queue.abandon_attempts()


@drive("consumer.session_lost")
def a_consumers_session_is_gone() -> None:
    FetchSession().on_response(C.FETCH_SESSION_ID_NOT_FOUND, 0)


# -- what a shell does: coroutines --------------------------------------------------------------------------------------


@drive("follower.fenced", "follower.session_lost")
def a_fetcher_meets_errors() -> None:
    world = leading()
    fetcher = FetcherCore(broker_id=2, broker_epoch=lambda: 12, settings=FetcherSettings(), on_disk_error=print)
    fetcher.add(world[2].p)
    plan = fetcher.plan(0.0)
    assert plan is not None
    fenced = FetchPartitionResponse(*P, C.FENCED_LEADER_EPOCH)
    fetcher.on_response(plan, FetchResponse(0, 0, 5, [fenced], [memoryview(b"")]), 0.0)
    fetcher.add(world[2].p)
    again = fetcher.plan(1.0)
    assert again is not None
    fetcher.on_failure(again, C.FETCH_SESSION_ID_NOT_FOUND, 1.0)


@drive("metadata.uncommitted_dropped")
def an_observer_gets_a_diverging_epoch() -> None:
    observer = QuorumObserver(broker_id=1, cluster_id="c", voter_ids=[101])
    diverging = fetch_response(101, 2)
    diverging.partitions[0].diverging_epoch = EpochEndOffset(0, 0)
    observer.on_fetch(101, diverging)


@drive("isr.proposal_retried")
async def a_controller_has_no_use_for_a_proposal() -> None:
    registration = SimpleNamespace(broker_epoch=1)
    manager = AlterPartitionManager(1, SimpleNamespace(), registration)  # type: ignore[arg-type]
    await manager._on_refusal(C.REQUEST_TIMED_OUT, 1)


def consumer_options() -> ConsumerOptions:
    return parse_options(ConsumerOptions, {"bootstrap_servers": "10.0.0.1:9092"})


@drive("client.broker_suspected", "client.leader_learned", "client.stale_picture")
async def a_client_finds_its_way() -> None:
    cluster = Cluster(consumer_options(), Random(1))
    picture = MetadataResponse(
        [MetadataBroker(n, "10.0.0.1", 9092) for n in (1, 2)],
        cluster_id="c",
        controller_id=-1,
        topics=[MetadataTopic(0, "orders", P[0], [MetadataPartition(0, 0, 1, 4, 4, [1, 2], [1, 2], [])])],
    )
    cluster.cache.update(picture)
    assert cluster.cache.update_leader("orders", 0, 2, 5)

    async def request(*_: object) -> MetadataResponse:
        return picture

    for state in cluster.connections.all():
        state.request = request  # type: ignore[method-assign, assignment]
    await cluster.any_broker.ask_any(apis.METADATA, MetadataRequest([]), 1000)
    await cluster.close()
    cluster.suspect(1)


@drive("consumer.position_checked", "consumer.truncated", "consumer.out_of_range")
async def a_consumers_position_is_no_more() -> None:
    options, subscription = consumer_options(), Subscription(EARLIEST)
    cluster = Cluster(options, Random(1))
    await cluster.close()
    fetcher = Fetcher(options, cluster, subscription)
    state = subscription.add(TopicPartition("orders", 0), P[0], None)
    state.seek(5, 1)
    fetcher._on_out_of_range(state, FetchPartitionResponse(*P, C.OFFSET_OUT_OF_RANGE))
    state.seek(5, 1)
    fetcher.offset_fetcher.on_end_offset(state, EpochEndOffsetPartition(*P, 0, 0, 3))
    await fetcher.close()


# -- a simulated day ----------------------------------------------------------------------------------------------------

CONTROLLER_SETTINGS = {
    "metadata.log.max.record.bytes.between.snapshots": 500,
    "leader.imbalance.check.interval.seconds": 1,
}


@drive(
    "node.crashed", "node.crashed_lossy", "node.paused", "broker.registered", "broker.unfenced", "broker.shutdown_granted",
    "broker.fenced_while_alive", "election.leaders_returned", "follower.connection_lost",
    "logs.recovered_clean", "logs.recovered_unclean", "raft.became_leader", "raft.snapshot_written", "raft.snapshot_installed",
    "raft.log_cleaned", "metadata.controller_changed", "metadata.snapshot_loaded", "producer.gave_up",
)  # fmt: skip
def a_day() -> World:
    return World(11)


async def play(world: World) -> None:
    """Machines stop, die and return under a producer; a controller is away until it needs a snapshot to catch up."""
    cluster = SimCluster(world, controller_settings=CONTROLLER_SETTINGS)
    await cluster.start_all()
    await cluster.create_topic("orders", partitions=1, replication_factor=3)
    away = next(n for n in cluster.controller_ids if cluster.controllers[n] is not cluster.active_controller)
    cluster.crash(away, lossy=True)
    client = cluster.client()
    client.spawn(send_for_ever(client.producer(acks=1, enable_idempotence=False)))
    await world.sleep(1)
    leader = cluster.image().partition((cluster.topic_id("orders"), 0)).leader
    cluster.machines[leader].pause()
    await world.sleep(8)
    cluster.machines[leader].resume()
    await cluster.ready()
    for n in range(12):
        await cluster.create_topic(f"orders-{n}", partitions=2, replication_factor=3)
    for end in ("stop", "crash", "lose"):
        leader = cluster.image().partition((cluster.topic_id("orders"), 0)).leader
        if end == "stop":
            await cluster.stop(leader)
        else:
            cluster.crash(leader, lossy=end == "lose")
        await world.sleep(2)
        cluster.start(leader)
        await cluster.ready()
    cluster.start(away)
    await world.sleep(5)
    active = cluster.active_controller
    assert active is not None
    cluster.crash(active.config.node_id)
    await world.sleep(5)
    last = cluster.client()
    await last.run(send_without_brokers(cluster, last.producer(delivery_timeout_ms=1000)))


async def send_for_ever(producer: Any) -> None:
    async with producer:
        while True:
            await producer.send("orders", b"v")
            await asyncio.sleep(0.02)


async def send_without_brokers(cluster: SimCluster, producer: Any) -> None:
    await producer.start()
    await producer.partitions_for("orders")
    for broker_id in list(cluster.brokers):
        cluster.crash(broker_id)
    with pytest.raises(DeliveryTimeout):
        await producer.send_and_wait("orders", b"v")


PLAYS = {
    "S02": ("election.unclean", "partition.recovering"),
    "S25": ("election.elr", "elr.member_added", "elr.cleared", "elr.member_lost_by_unclean_shutdown"),
    "S36": ("log.records_deleted",),
    "S47": ("cleaner.replaced", "cleaner.replacement_finished"),
    "S58": ("cleaner.aborted",),
    "S59": ("follower.fresh_copy",),
    "S78": ("reassignment.completed", "reassignment.cancelled"),
    "S61": ("cleaner.disk_full",),
    "S52": ("group.loaded", "group.load_awaited", "group.reply_waited", "group.read_waited", "group.member_expired"),
    "S95": ("produce.offset_conflict",),
    "S96": ("group.classic_static_returned", "group.upgraded", "group.downgraded"),
    "S97": ("group.load_overtaken", "group.not_coordinator"),
    "S98": ("member.idle", "member.cut_off", "member.callback_cut_off"),
    "S99": ("group.member_revoking", "group.member_waiting"),
    "S100": ("group.classic_rebalanced", "group.classic_generation_refused"),
    "S101": ("offsets.of_stranger",),
    "S102": ("group.response_lost", "group.member_fenced"),
    "S103": ("offsets.of_older_epoch", "offsets.stale"),
    "S104": ("group.late_request",),
    "S106": ("group.deleted",),
    "S107": ("member.assigned", "member.revoked", "member.lost", "member.commit_failed"),
    "S137": ("group.configured", "group.out_of_bounds"),
    "S108": ("group.connection_lost", "group.static_returned", "group.static_refused"),
    "S109": ("group.pattern_matched",),
    "S110": ("offsets.expired", "offsets.topic_deleted"),
    "S111": ("group.reply_failed", "group.reply_timed_out", "group.append_refused", "member.suspended", "member.resumed"),
    "S125": ("security.denied",),
    "S126": ("security.login_failed",),
    "S127": ("security.rights_changed",),
    "S128": ("security.login_again",),
    "S129": ("security.password_changed",),
    "S131": ("security.throttled",),
}
"""Scenario -> marks that it drives."""


# -- the tests ----------------------------------------------------------------------------------------------------------


def run(function: Callable[[], Any]) -> dict[str, int]:
    """Run a drive; returns the counts of all marks."""
    trace = Trace(lambda: 0.0)
    with Marks().watching(trace) as marks, captured_logs(trace):
        result = function()
        if asyncio.iscoroutine(result):
            asyncio.run(result)
    return marks.counts


@pytest.mark.parametrize("function", [f for f in DRIVES if f is not a_day], ids=lambda f: f.__name__)
def test_events_of_production_code_are_counted(function: Callable[[], object]) -> None:
    counts = run(function)
    assert [name for name in DRIVES[function] if not counts[name]] == []


def test_a_simulated_day_is_counted() -> None:
    world = a_day()
    try:
        with Marks().watching(world.trace) as marks:
            world.run(play(world))
    finally:
        world.close()
    assert [name for name in DRIVES[a_day] if not marks.counts[name]] == []


@pytest.mark.parametrize("number", PLAYS)
def test_events_of_a_scenario_are_counted(number: str) -> None:
    report = run_scenario(number, 0)
    assert report.good, str(report)
    assert [name for name in PLAYS[number] if not report.marks[name]] == []


def test_every_mark_is_driven() -> None:
    driven = {name for names in (*DRIVES.values(), *PLAYS.values()) for name in names}
    assert sorted(set(MARKS) - driven) == []
    assert sorted(driven - set(MARKS)) == []


def test_nothing_is_counted_when_nothing_happens() -> None:
    assert not any(run(lambda: None).values())


def test_marks_have_a_name_of_two_parts_and_a_meaning() -> None:
    assert all(re.fullmatch(r"[a-z_]+\.[a-z_]+", name) for name in MARKS)
    assert all(mark.meaning and mark.reach in (SWEEP, RARE, SCENARIO) for mark in MARKS.values())


LINES = re.compile(r"\.(info|warning|error|exception|critical)\(\s*\"([a-z_.]+)\"")


def test_every_line_that_a_mark_waits_for_is_written_somewhere() -> None:
    """Its level is one that a simulation captures."""
    rooms = ("protocol", "storage", "controller", "broker", "client")
    code = "\n".join(path.read_text() for room in rooms for path in (ROOT / room).rglob("*.py"))
    written = {name for _, name in LINES.findall(code)}
    waited_for = {s.kind for mark in MARKS.values() for s in mark.sights if isinstance(s, OnEvent) and s.kind.startswith("log.")}
    assert sorted(kind for kind in waited_for if kind.removeprefix("log.") not in written) == []


def test_missing_lists_the_marks_at_zero() -> None:
    one, other = dict.fromkeys(MARKS, 1), dict.fromkeys(MARKS, 2)
    assert missing(total([one, other])) == []
    assert total([one, other])["isr.shrunk"] == 3
    assert missing({**one, "isr.shrunk": 0, "follower.restarted": 0}) == ["isr.shrunk"]
    assert missing({**one, "isr.shrunk": 0, "follower.restarted": 0}, reach=RARE) == ["follower.restarted"]
    assert missing({}, reach=None) == list(MARKS)


# -- watching -----------------------------------------------------------------------------------------------------------


def table(*sights: Sight) -> dict[str, Mark]:
    return {"it.happened": Mark("it happened", sights)}


def test_events_of_other_traces_are_not_ours() -> None:
    ours, theirs = Trace(lambda: 0.0), Trace(lambda: 0.0)
    with Marks(table(OnEvent("isr.shrunk"))).watching(ours) as marks:
        theirs.emit("isr.shrunk", 1)
        ours.emit("isr.expanded", 1)
        assert marks.counts == {"it.happened": 0}
        ours.emit("isr.shrunk", 1, "orders-0", isr=[1])
    ours.emit("isr.shrunk", 1)
    assert marks.counts == {"it.happened": 1}
    assert ours.counts() == {"isr.expanded": 1, "isr.shrunk": 2}


def test_marks_count_events_without_a_trace() -> None:
    marks = Marks(table(OnEvent("isr.shrunk", lambda fields: fields["isr"] == [1])))
    marks.on_event("isr.shrunk", 1, "orders-0", {"isr": [1, 2]})
    marks.on_event("isr.shrunk", 1, "orders-0", {"isr": [1]})
    assert marks.counts == {"it.happened": 1}


def test_watched_function_is_unchanged_and_restored() -> None:
    """Its result, its error, and in the end the very same function: a mark must change nothing."""
    before = vars(ProducerStates)["check"]
    seen: list[str] = []
    sights = {"refused": (OnCall("storage.log.producer_state:ProducerStates.check", lambda call: call.code, raised=True),)}
    header = read_header(record_batch("v", producer_id=1, producer_epoch=0, sequence=5))
    with Watch(sights, seen.append).installed():
        states = ProducerStates()
        assert states.check(header, {}) is None
        states.update(header, 0)
        with pytest.raises(BrokerError, match="OUT_OF_ORDER"):
            states.check(header._replace(base_sequence=9), {})
    assert seen == ["refused"]
    assert vars(ProducerStates)["check"] is before


def test_death_of_a_process_is_not_counted_as_a_raise() -> None:
    """It is not known what an operation has done in which the process died."""
    files = MemoryFiles()

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    files.maybe_fail = die  # type: ignore[method-assign]
    sights = {
        "read": (
            OnCall("storage.memory.memory_files:MemoryFiles.read"),
            OnCall("storage.memory.memory_files:MemoryFiles.read", raised=True),
        )
    }
    seen: list[str] = []
    with Watch(sights, seen.append).installed(), pytest.raises(KeyboardInterrupt):
        files.read("/x")
    assert seen == []


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("broker.process.server:BrokerServer.stop", "coroutine"),
        ("controller.raft.node:RaftNode.become_leader", "inherited"),
    ],
)
def test_unwatchable_function_is_rejected(target: str, reason: str) -> None:
    with pytest.raises(TypeError, match=reason):
        resolve(target)
