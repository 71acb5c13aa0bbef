"""Unclean elections: when a strategy allows one, which replica wins, and which records the report says may be lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest
from controller_world import ControllerWorld
from handled_request import HandledRequest
from test_directory_control import assign

from strandline.controller.metadata.features import LEVEL_0_ONLY
from strandline.controller.metadata.image import UNCLEAN_ELECTIONS_MAX, BrokerRegistration, MetadataImage, PartitionRegistration
from strandline.controller.metadata.records import (
    NO_LEADER,
    RECOVERED,
    RECOVERING,
    ConfigRecord,
    FeatureLevelRecord,
    PartitionChangeRecord,
    UncleanElectionRecord,
)
from strandline.controller.unclean_recoverer import UncleanRecoverer, UncleanSettings
from strandline.controller.unclean_recovery import (
    ELECTIONS_MAX,
    RecoveryClock,
    ReplicaLog,
    Strategy,
    best_of,
    is_candidate,
    lost_range,
    strategy_of,
)
from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.feature_names import METADATA_VERSION
from strandline.protocol.messages.admin import (
    CONFIG_SET,
    RESOURCE_BROKER,
    RESOURCE_TOPIC,
    UNCLEAN_ELECTION,
    AlterableConfig,
    AlterConfigsResource,
    DeleteTopicsRequest,
    DeleteTopicState,
    ElectLeadersPartition,
    ElectLeadersRequest,
    IncrementalAlterConfigsRequest,
)
from strandline.protocol.messages.cluster import (
    GetReplicaLogInfoResponse,
    LossyPartitions,
    ReplicaLogInfo,
    ReplicaLogInfoTopicResponse,
)
from strandline.protocol.partitions import TopicIdPartition

TOPIC, CLUSTER = (RESOURCE_TOPIC, "t"), (RESOURCE_BROKER, "")
ENABLE, STRATEGY = "unclean.leader.election.enable", "unclean.recovery.strategy"
KEY = (b"t" * 16, 0)

# -- which strategy ---------------------------------------------------------------------------------------------------

SETTINGS = {
    "the default": ([], Strategy.BALANCED),
    "enabled for the topic": ([(*TOPIC, ENABLE, "true")], Strategy.AGGRESSIVE),
    "enabled for the cluster": ([(*CLUSTER, ENABLE, "true")], Strategy.AGGRESSIVE),
    "disabled for the topic, enabled for the cluster": (
        [(*TOPIC, ENABLE, "false"), (*CLUSTER, ENABLE, "true")],
        Strategy.BALANCED,
    ),
    "disabled for the topic, a strategy for the cluster": (
        [(*TOPIC, ENABLE, "false"), (*CLUSTER, STRATEGY, "none")],
        Strategy.NONE,
    ),
    "a strategy for the topic, enabled for the cluster": (
        [(*TOPIC, STRATEGY, "none"), (*CLUSTER, ENABLE, "true")],
        Strategy.NONE,
    ),
    "both for the topic": ([(*TOPIC, STRATEGY, "none"), (*TOPIC, ENABLE, "true")], Strategy.AGGRESSIVE),
    "a strategy for the cluster": ([(*CLUSTER, STRATEGY, "aggressive")], Strategy.AGGRESSIVE),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_strategy_nearest_to_the_topic_counts(name: str) -> None:
    configs, expected = SETTINGS[name]
    records = [FeatureLevelRecord(METADATA_VERSION, 1), *(ConfigRecord(*each) for each in configs)]
    assert strategy_of(MetadataImage.EMPTY.apply(records, 9, 1).image, "t") is expected


def test_metadata_of_level_0_has_no_unclean_elections() -> None:
    """A report needs level 1, and no unclean election happens without one."""
    image = MetadataImage.EMPTY.apply([ConfigRecord(*TOPIC, ENABLE, "true")], 0, 1).image
    assert strategy_of(image, "t") is Strategy.NONE


@pytest.mark.parametrize(
    ("isr", "elr", "allowed"),
    [
        ((), (), {Strategy.BALANCED, Strategy.AGGRESSIVE}),
        ((2,), (), {Strategy.AGGRESSIVE}),
        ((), (2,), {Strategy.AGGRESSIVE}),
    ],
)
def test_balanced_waits_for_replicas_that_have_all_records(
    isr: tuple[int, ...], elr: tuple[int, ...], allowed: set[Strategy]
) -> None:
    partition = PartitionRegistration((1, 2, 3), isr, NO_LEADER, 4, 4, elr=elr)
    assert {strategy for strategy in Strategy if is_candidate(partition, strategy)} == allowed


# -- which replica, and what is lost ----------------------------------------------------------------------------------


def log(last_epoch: int, end: int, high_watermark: int = 0, *, lacks: bool = False) -> ReplicaLog:
    return ReplicaLog(1, last_epoch, end, high_watermark, lacks)


def test_newest_history_wins_then_the_longest_log_then_the_first_replica() -> None:
    assert best_of({1: log(3, 900), 2: log(4, 100), 3: log(4, 101)}) == 3
    assert best_of({2: log(4, 100), 1: log(4, 100)}) == 2
    assert best_of({1: log(-1, 0), 2: log(-1, -1)}) == 1
    assert best_of({1: log(4, -1)}) is None


LEADERLESS = PartitionRegistration((1, 2, 3), (), NO_LEADER, 6, 9, last_known_elr=(1,))
"""Broker 1 led in epoch 5."""


def report(lost_from: int, leader_epoch: int) -> UncleanElectionRecord:
    return UncleanElectionRecord(*KEY, 2, leader_epoch, (), 1, 0, 0, lost_from, -1, "aggressive", 0)


RANGES = {
    "the last leader has not answered": ({2: log(5, 80, 70)}, [], (80, -1)),
    "the last leader may lack records": ({1: log(5, 90, 85, lacks=True), 2: log(5, 80)}, [], (80, -1)),
    "the last leader has a longer log": ({1: log(5, 90, 85), 2: log(5, 80)}, [], (80, 90)),
    "the new leader has the whole log": ({1: log(5, 80), 2: log(5, 80)}, [], (80, 80)),
    "the new leader has an older history": ({2: log(4, 80, 70)}, [], (70, -1)),
    "its log ends below its high watermark": ({2: log(4, 60, 70, lacks=True)}, [], (60, -1)),
    "it has missed an earlier unclean election": ({2: log(2, 80, 70)}, [report(50, 4), report(65, 5)], (50, -1)),
    "it has followed the earlier unclean election": ({2: log(4, 80, 70)}, [report(50, 4)], (70, -1)),
    "it has missed more than are kept": ({2: log(2, 80, 70)}, [report(50, 4)] * UNCLEAN_ELECTIONS_MAX, (0, -1)),
    "it has no records": ({2: log(-1, 0)}, [], (0, -1)),
}


@pytest.mark.parametrize("name", RANGES)
def test_range_of_records_that_may_be_lost(name: str) -> None:
    answers, earlier, expected = RANGES[name]
    assert lost_range(LEADERLESS, earlier, 2, answers) == expected


# -- with a controller ------------------------------------------------------------------------------------------------


class Recovering:
    """Three brokers, a partition with replicas on all of them, and an active controller that asks them for their logs."""

    def __init__(self, **world: Any) -> None:
        self.world = ControllerWorld(brokers=3, **world)
        self.world.create("t", [[1, 2, 3]])
        self.logs = {1: log(0, 100), 2: log(0, 60), 3: log(0, 80)}
        self.silent: set[int] = set()
        """Brokers that do not answer."""
        self.asked: list[int] = []
        self.before_answer: Callable[[], object] = lambda: None
        self.recoverer = UncleanRecoverer(
            self.world.controller, lambda: UncleanSettings(300.0, 5.0), wall_clock_ms=lambda: 12345, ask=self.answer
        )
        self.recoverer.on_active()

    async def answer(self, broker: BrokerRegistration, keys: Sequence[TopicIdPartition]) -> GetReplicaLogInfoResponse:
        self.asked.append(broker.broker_id)
        await asyncio.sleep(0)
        self.before_answer()
        if broker.broker_id in self.silent:
            raise BrokerError(ErrorCode.REQUEST_TIMED_OUT)
        found = self.logs[broker.broker_id]
        topics = [
            ReplicaLogInfoTopicResponse(
                topic_id,
                [ReplicaLogInfo(index, found.last_epoch, 0, found.log_end_offset, 0, None, found.high_watermark)],
            )
            for topic_id, index in keys
        ]
        return GetReplicaLogInfoResponse(broker.broker_epoch, topics)

    @property
    def partition(self) -> PartitionRegistration:
        return self.world.partition("t")

    @property
    def reports(self) -> tuple[UncleanElectionRecord, ...]:
        (key,) = [(topic_id, 0) for topic_id in self.world.image.topics_by_id]
        found: tuple[UncleanElectionRecord, ...] = self.world.image.unclean_elections.get(key, ())
        return found

    def configure(self, resource: tuple[int, str], key: str, value: str) -> None:
        request = IncrementalAlterConfigsRequest([AlterConfigsResource(*resource, [AlterableConfig(key, CONFIG_SET, value)])])
        (result,) = self.world.call(apis.INCREMENTAL_ALTER_CONFIGS, request).responses
        assert not result.error_code, result.error_message

    def lose_the_leader(self) -> None:
        """Shrink the ISR to broker 1, and kill that broker."""
        self.world.alter("t", [1])
        self.world.kill_broker(1)
        assert self.partition.leader == NO_LEADER

    async def settle(self) -> None:
        """Run all work that is due now."""
        for _ in range(20):
            await asyncio.sleep(0)
            self.world.commit()

    async def elect(self, leader: int = -1, partition: int = 0) -> tuple[ErrorCode, str | None]:
        request = HandledRequest(ElectLeadersRequest(UNCLEAN_ELECTION, [ElectLeadersPartition("t", partition, leader)]))
        handling = asyncio.get_running_loop().create_task(self.recoverer.handle(request))
        await self.settle()
        await handling
        (result,) = request.answers[0].results
        return ErrorCode(result.error_code), result.error_message


def play(story: Callable[[Recovering], Coroutine[Any, Any, None]], **world: Any) -> None:
    async def run() -> None:
        recovering = Recovering(**world)
        try:
            await story(recovering)
        finally:
            await recovering.recoverer.stop()

    asyncio.run(run())


def test_partition_waits_for_its_last_member_by_default() -> None:
    async def story(it: Recovering) -> None:
        it.lose_the_leader()
        await it.settle()
        assert it.partition.leader == NO_LEADER
        assert not it.asked
        it.world.start_broker(1, 2)
        assert it.partition.leader == 1
        assert not it.reports

    play(story)


def test_aggressive_election_after_the_timeout_takes_the_longest_log() -> None:
    """The report names the brokers that were asked, the ends of their logs, and the records that may be lost."""

    async def story(it: Recovering) -> None:
        it.configure(TOPIC, ENABLE, "true")
        it.lose_the_leader()
        epochs = it.partition.leader_epoch, it.partition.partition_epoch
        await it.settle()
        assert it.partition.leader == NO_LEADER, "broker 1 may return in time"
        it.world.now += 5.0
        it.world.heartbeat(2)
        it.configure(TOPIC, "retention.bytes", "1000000")  # any change after which the controller looks at leaderless partitions
        await it.settle()
        found = it.partition
        assert (found.leader, found.isr, found.elr, found.last_known_elr) == (3, (3,), (), ())
        assert found.leader_recovery_state == RECOVERING
        assert (found.leader_epoch, found.partition_epoch) == (epochs[0] + 1, epochs[1] + 1)
        (reported,) = it.reports
        assert (reported.leader, reported.leader_epoch, reported.last_known_leader) == (3, found.leader_epoch, 1)
        assert (reported.lost_from, reported.lost_to, reported.strategy) == (80, -1, "aggressive")
        assert [(each.broker_id, each.log_end_offset) for each in reported.replicas] == [(1, -1), (2, 60), (3, 80)]
        assert reported.elected_at_ms == 12345
        assert it.world.controller.metrics.unclean_elections == 1
        assert it.world.controller.metrics.reported_losses == 1

    play(story)


@pytest.mark.parametrize("strategy", ["balanced", "aggressive"])
def test_a_replica_in_an_offline_directory_is_waited_for(strategy: str) -> None:
    """The disk may return with all records, as the machine of a broker with one disk may. Until then, its broker answers that the
    replica is offline."""
    first, second = b"d" * 16, b"e" * 16

    async def story(it: Recovering) -> None:
        it.configure(TOPIC, STRATEGY, strategy)
        it.world.kill_broker(1)
        it.world.start_broker(1, 2, log_dirs=[first, second])
        it.world.alter("t", [2, 3, 1])
        assert assign(it.world, first, 0) == [0]
        for other in (2, 3):
            it.world.kill_broker(other)
        for other in (2, 3):
            it.world.start_broker(other, 2)
        assert (it.partition.leader, it.partition.isr) == (1, (1,))
        heartbeat = it.world.heartbeat_request(1, offline_log_dirs=[first])
        heartbeat.lossy_partitions = [LossyPartitions(next(iter(it.world.image.topics_by_id)), [0])]
        it.world.call(apis.BROKER_HEARTBEAT, heartbeat)
        it.logs[1] = log(-1, -1)
        assert (it.partition.leader, it.partition.isr, it.partition.elr) == (NO_LEADER, (), ())
        await it.settle()
        assert it.partition.leader == NO_LEADER
        it.logs[1] = log(0, 100)
        it.world.kill_broker(1)
        it.world.start_broker(1, 3, log_dirs=[first, second])
        await it.settle()
        assert it.partition.leader == 1
        (reported,) = it.reports
        assert reported.strategy == strategy

    play(story)


def test_enabling_unclean_elections_is_noticed_by_itself() -> None:
    """The controller looks at leaderless partitions when a configuration changes (KIP-460)."""

    async def story(it: Recovering) -> None:
        it.lose_the_leader()
        await it.settle()
        it.world.now += 10.0
        it.configure(CLUSTER, STRATEGY, "aggressive")
        await it.settle()
        assert it.partition.leader == 3

    play(story)


def test_broker_that_restarted_since_it_answered_is_not_elected() -> None:
    """Its new process may have fewer records than the old one had."""

    async def story(it: Recovering) -> None:
        it.configure(TOPIC, ENABLE, "true")
        it.lose_the_leader()
        await it.settle()
        it.world.now += 6.0

        def restart() -> None:
            it.before_answer = lambda: None
            it.world.kill_broker(3)
            it.world.start_broker(3, 7)

        it.before_answer = restart
        it.logs[3] = log(0, 80)
        it.configure(TOPIC, "retention.bytes", "1000000")
        await it.settle()
        assert it.partition.leader == 3
        assert it.asked.count(3) == 2, "the second round asks the new process"

    play(story)


def test_partition_that_got_a_leader_meanwhile_is_left_alone() -> None:
    async def story(it: Recovering) -> None:
        it.configure(TOPIC, ENABLE, "true")
        it.lose_the_leader()
        await it.settle()
        it.world.now += 10.0

        def back() -> None:
            it.before_answer = lambda: None
            it.world.start_broker(1, 9)

        it.before_answer = back
        it.configure(TOPIC, "retention.bytes", "1000000")
        await it.settle()
        assert it.partition.leader == 1
        assert it.partition.leader_recovery_state == RECOVERED
        assert not it.reports

    play(story)


def test_report_survives_the_replay_and_the_snapshot_of_another_controller() -> None:
    async def story(it: Recovering) -> None:
        it.lose_the_leader()
        assert await it.elect() == (ErrorCode.NONE, None)
        image = it.world.image
        assert it.world.replayed().unclean_elections == image.unclean_elections
        again = MetadataImage.from_records(list(image.to_records()), image.offset, image.epoch)
        assert again.unclean_elections == image.unclean_elections
        it.world.call(apis.DELETE_TOPICS, DeleteTopicsRequest([DeleteTopicState("t")], 1000))
        assert not it.world.image.unclean_elections

    play(story)


def test_each_loss_of_the_leader_waits_for_the_whole_timeout() -> None:
    """The leader returns and fails again. The time of its first absence does not count: otherwise the replicas that happen to
    answer first would be elected at once."""

    async def story(it: Recovering) -> None:
        it.configure(TOPIC, ENABLE, "true")
        it.lose_the_leader()
        await it.settle()
        it.world.register(1, 2)
        await it.settle()
        it.world.heartbeat(1)
        assert it.partition.leader == 1
        await it.settle()
        it.world.now += 60.0
        for broker_id in (1, 2, 3):
            it.world.heartbeat(broker_id)
        it.world.kill_broker(1)
        assert it.partition.leader == NO_LEADER
        await it.settle()
        assert it.partition.leader == NO_LEADER, "broker 1 may return in time"
        assert not it.asked

    play(story)


def test_partitions_that_cannot_be_elected_do_not_keep_others_waiting() -> None:
    """A round asks about a limited number of partitions. If none of them has a replica that can lead, such as those of a failed
    disk, the next round asks about others."""
    world = ControllerWorld(brokers=3)
    world.create("t", [[1, 2, 3]] * (ELECTIONS_MAX + 50))
    lost = [PartitionChangeRecord(*key, isr=(), leader=NO_LEADER) for key in keys_of(world)]
    image = world.image.apply(lost, world.image.offset + len(lost), 1).image
    clock = RecoveryClock(5.0)
    rounds = [[key for key, _ in clock.look(image, keys_of(world), 1000.0 + second).due] for second in range(3)]
    assert [len(each) for each in rounds] == [ELECTIONS_MAX] * 3
    assert set(rounds[0]) | set(rounds[1]) == set(keys_of(world))
    assert rounds[0] != rounds[1] != rounds[2]


def keys_of(world: ControllerWorld) -> list[TopicIdPartition]:
    return [(topic.topic_id, index) for topic in world.image.topics_by_id.values() for index in topic.partitions]


def test_answer_from_the_future_is_a_damaged_log() -> None:
    """No leader of this partition has had such an epoch. A leader with that log could not append to it."""

    async def story(it: Recovering) -> None:
        it.lose_the_leader()
        it.logs[3] = log(it.partition.leader_epoch, 500)
        assert (await it.elect(3))[0] == ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
        assert await it.elect() == (ErrorCode.NONE, None)
        assert it.partition.leader == 2
        assert it.reports[0].lost_to == -1

    play(story)


# -- on request -------------------------------------------------------------------------------------------------------


def test_requested_election_takes_the_longest_log() -> None:
    """Kafka would elect broker 2, which is the first of the replicas that is alive."""

    async def story(it: Recovering) -> None:
        it.lose_the_leader()
        assert await it.elect() == (ErrorCode.NONE, None)
        assert it.partition.leader == 3
        assert it.reports[0].strategy == "operator"

    play(story)


def test_operator_names_the_replica_to_elect() -> None:
    async def story(it: Recovering) -> None:
        it.lose_the_leader()
        assert await it.elect(2) == (ErrorCode.NONE, None)
        assert it.partition.leader == 2
        assert it.reports[0].lost_from == 60

    play(story)


def test_requested_election_is_refused() -> None:
    async def story(it: Recovering) -> None:
        assert (await it.elect())[0] == ErrorCode.ELECTION_NOT_NEEDED
        assert (await it.elect(partition=7))[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        it.lose_the_leader()
        assert (await it.elect(9))[0] == ErrorCode.INVALID_REQUEST
        assert (await it.elect(1))[0] == ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
        it.silent = {2, 3}
        assert (await it.elect())[0] == ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
        assert it.partition.leader == NO_LEADER

    play(story)


def test_damaged_log_is_not_elected() -> None:
    async def story(it: Recovering) -> None:
        it.lose_the_leader()
        it.logs[3] = log(9, -1)
        assert await it.elect() == (ErrorCode.NONE, None)
        assert it.partition.leader == 2

    play(story)


def test_unclean_election_needs_level_1() -> None:
    async def story(it: Recovering) -> None:
        it.lose_the_leader()
        assert (await it.elect())[0] == ErrorCode.UNSUPPORTED_VERSION

    play(story, levels=LEVEL_0_ONLY)


# -- the recovery of the leader ---------------------------------------------------------------------------------------


def test_recovering_leader_expands_its_isr_only_after_its_recovery() -> None:
    """KIP-704: a proposal with RECOVERING and more than one member is refused; RECOVERED ends the recovery."""

    async def story(it: Recovering) -> None:
        it.lose_the_leader()
        await it.elect()
        assert it.world.alter("t", [3, 2], recovery=RECOVERING).error_code == ErrorCode.INVALID_REQUEST
        assert not it.world.alter("t", [3]).error_code
        assert it.partition.leader_recovery_state == RECOVERED
        assert not it.world.alter("t", [3, 2]).error_code

    play(story)
