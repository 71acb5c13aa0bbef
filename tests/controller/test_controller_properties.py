"""Thousands of random steps of brokers, leaders and administrators; the invariants are checked after every record.

I2   the leader is none or in the ISR; the ISR is part of the replicas. At level 0 of the metadata it is never empty, and a fenced
     broker is in an ISR only as its last member, and then there is no leader. (The ISR may also keep a last member that is
     shutting down.) From level 1 on it is empty if there is no leader, and has no fenced member.
I3   every member of the ISR and the ELR has all committed records, also after processes with a lost disk have registered. There
     is an ELR only while the ISR is smaller than the min ISR, because then nothing is committed (KIP-966).
I13  a broker that joins an ISR is unfenced, not shutting down, and the incarnation that the leader named.
I14  leader epoch, partition epoch and broker epoch never decrease; every change of a partition raises its partition epoch.
I19  a replay of the log, or of a snapshot at any offset and the rest, gives the image of the writer.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from controller_world import ControllerWorld

from strandline.controller.metadata.features import LEVEL_0_ONLY, SUPPORTED, Levels
from strandline.controller.metadata.image import MetadataImage, PartitionRegistration
from strandline.controller.metadata.records import (
    NO_LEADER,
    AnyRecord,
    PartitionChangeRecord,
    RegisterBrokerRecord,
    decode_record,
)
from strandline.controller.partition_index import PartitionIndex
from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages import security
from strandline.protocol.messages.admin import (
    CONFIG_DELETE,
    CONFIG_SET,
    PREFERRED_ELECTION,
    RESOURCE_TOPIC,
    AlterableConfig,
    AlterConfigsResource,
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
    ElectLeadersRequest,
    IncrementalAlterConfigsRequest,
)
from strandline.protocol.messages.cluster import (
    LOSS_MAYBE,
    LOSS_NO,
    AllocateProducerIdsRequest,
    AlterPartitionRequest,
    InitNamedProducerRequest,
)
from strandline.protocol.partitions import TopicIdPartition

BROKERS = range(1, 6)


class Watcher:
    """Replays the log record by record, and checks the invariants after each."""

    def __init__(self, world: ControllerWorld) -> None:
        self.world = world
        self.image = MetadataImage.EMPTY
        self.batches_seen = 0
        self.epochs: dict[int, int] = {}
        """The highest broker epoch that each broker ever had."""
        self.elections = self.leaderless = self.elected_from_elr = self.struck = 0
        self.complete: dict[TopicIdPartition, set[int]] = {}
        """The brokers whose log certainly has every committed record of a partition, whatever its leader may have committed."""
        self.lossy: dict[bytes, None] = {}
        """Incarnation ids of the processes that found a lost disk."""

    def catch_up(self) -> None:
        quorum = self.world.quorum
        for base, last in quorum.batches[self.batches_seen :]:
            for offset in range(base, last + 1):
                self.replay(decode_record(quorum.log[offset][1]), offset)
            self.check_elrs()
        self.batches_seen = len(quorum.batches)
        image = self.world.image
        for name in ("brokers", "topics_by_id", "configs", "acls", "acl_ids", "scram_credentials", "client_quotas"):
            assert getattr(image, name) == getattr(self.image, name)

    def replay(self, record: AnyRecord, offset: int) -> None:
        delta = self.image.apply([record], offset, 1)
        self.image = delta.image
        for key in delta.changed_partitions:
            before, after = delta.before.partition(key), delta.image.partition(key)
            assert after is not None
            self.check_partition(after)
            if before is not None:
                self.check_change(before, after, record)
            self.check_completeness(key, after)
        for broker_id in delta.changed_brokers:
            epoch = self.image.brokers[broker_id].broker_epoch
            assert epoch >= self.epochs.get(broker_id, -1)
            self.epochs[broker_id] = epoch
            if isinstance(record, RegisterBrokerRecord) and self.lossy.pop(record.incarnation_id, 0) is None:
                self.on_lossy_process(broker_id)
            if self.image.brokers[broker_id].fenced:
                self.check_everywhere(broker_id)

    def on_lossy_process(self, broker_id: int) -> None:
        for key, complete in self.complete.items():
            partition = self.image.partition(key)
            if partition is not None and broker_id in partition.replicas and len(partition.replicas) > 1:
                self.struck += broker_id in complete
                complete.discard(broker_id)
                self.check_completeness(key, partition)

    def check_completeness(self, key: TopicIdPartition, partition: PartitionRegistration) -> None:
        """With an ELR nothing is committed; otherwise the leader may commit what only the ISR has."""
        before = self.complete.get(key, set(partition.isr))
        now = {*partition.isr, *partition.elr}
        joined = set(partition.isr)
        if self.image.feature_level and len(partition.replicas) > 1:
            assert now <= before | joined, f"{now - before - joined} may lack records"
        self.complete[key] = before | joined if partition.elr or not partition.isr else joined

    def check_elrs(self) -> None:
        for topic in self.image.topics_by_id.values():
            for partition in topic.partitions.values():
                min_isr = min(self.image.min_insync_replicas(topic.name), len(partition.replicas))
                assert not partition.elr or len(partition.isr) < min_isr
                assert not set(partition.elr) & set(partition.isr)

    def check_partition(self, partition: PartitionRegistration) -> None:
        assert partition.isr or self.image.feature_level
        assert set(partition.isr) <= set(partition.replicas)
        assert len(set(partition.isr)) == len(partition.isr)
        assert partition.leader == NO_LEADER or partition.leader in partition.isr
        assert partition.leader_epoch <= partition.partition_epoch
        if partition.leader == NO_LEADER:
            self.leaderless += 1
            assert len(partition.isr) == (0 if self.image.feature_level else 1)

    def check_everywhere(self, fenced: int) -> None:
        for topic in self.image.topics_by_id.values():
            for partition in topic.partitions.values():
                assert partition.leader != fenced
                if self.image.feature_level:
                    assert fenced not in partition.isr
                assert fenced not in partition.isr or (partition.isr, partition.leader) == ((fenced,), NO_LEADER)

    def check_change(self, before: PartitionRegistration, after: PartitionRegistration, record: AnyRecord) -> None:
        assert isinstance(record, PartitionChangeRecord)
        assert after.replicas == before.replicas
        assert after.partition_epoch == before.partition_epoch + 1
        assert after.leader_epoch == before.leader_epoch + (after.leader != before.leader)
        for joined in set(after.isr) - set(before.isr):
            assert self.image.brokers[joined].is_active
        if after.leader != before.leader:
            self.elections += 1
            assert after.leader in (NO_LEADER, *before.isr, *before.elr)
            self.elected_from_elr += after.leader in before.elr


class Chaos:
    """Each method is one random step. Rejected steps are as interesting as accepted ones."""

    def __init__(self, seed: int, levels: Levels = SUPPORTED) -> None:
        self.random = Random(seed)
        self.world = ControllerWorld(brokers=3, seed=seed, levels=levels)
        self.lossy: dict[bytes, None] = {}
        self.incarnation = 10
        self.held: list[AlterPartitionRequest] = []
        """Proposals in flight: they arrive at any later time, or never."""
        self.epoch = 1
        self.refusals: dict[ErrorCode, int] = {}
        steps: list[tuple[int, Callable[[], None]]] = [
            (30, self.propose),
            (15, self.deliver),
            (25, self.beat),
            (6, self.restart),
            (8, self.die),
            (5, self.shut_down),
            (4, self.want_fence),
            (4, self.let_time_pass),
            (3, self.create),
            (2, self.grow),
            (1, self.delete),
            (3, self.elect),
            (2, self.fail_over),
            (4, self.configure),
            (1, self.producer_ids),
            (1, self.named_producer),
            (1, self.acls),
            (1, self.credentials),
            (1, self.quotas),
        ]
        self.steps = [step for weight, step in steps for _ in range(weight)]

    def step(self) -> None:
        try:
            self.random.choice(self.steps)()
        except BrokerError as e:
            self.refusals[e.code] = self.refusals.get(e.code, 0) + 1

    def a_partition(self) -> tuple[str, int] | None:
        names = sorted(self.world.image.topics_by_name)
        if not names:
            return None
        name = self.random.choice(names)
        topic = self.world.image.topic(name)
        assert topic is not None
        return name, self.random.randrange(len(topic.partitions))

    def propose(self) -> None:
        """Propose an ISR as the leader would, or now and then one that the controller must reject."""
        found = self.a_partition()
        if found is None:
            return
        partition = self.world.partition(*found)
        if partition.leader == NO_LEADER:
            return
        wish = [b for b in partition.replicas if self.random.random() < 0.7 or b == partition.leader]
        if self.random.random() < 0.05:
            wish = [self.random.choice(BROKERS) for _ in wish]
        request = self.world.alter_request(found[0], wish, found[1])
        if self.random.random() < 0.3:
            self.held.append(request)
        else:
            self.send(request)

    def deliver(self) -> None:
        if self.held:
            self.send(self.held.pop(self.random.randrange(len(self.held))))

    def send(self, request: AlterPartitionRequest) -> None:
        (answer,) = self.world.call(apis.ALTER_PARTITION, request).partitions
        (item,) = request.partitions
        partition = self.world.image.partition((item.topic_id, item.partition))
        if answer.error_code == 0:
            assert partition is not None
            assert tuple(answer.isr) == partition.isr == tuple(b.broker_id for b in item.new_isr)
            for member in item.new_isr:
                assert member.broker_epoch == self.world.epoch(member.broker_id)
        else:
            code = ErrorCode(answer.error_code)
            self.refusals[code] = self.refusals.get(code, 0) + 1

    def a_broker(self) -> int:
        return self.random.choice(sorted(self.world.image.brokers))

    def beat(self) -> None:
        lag = self.random.choice([0, 0, 0, 5])
        self.world.heartbeat(self.a_broker(), offset=self.world.image.offset - lag)

    def restart(self) -> None:
        """Start a process, usually of a broker that is down; otherwise a second live one with the same id."""
        self.incarnation += 1
        down = [b for b in sorted(self.world.image.brokers) if self.world.image.brokers[b].fenced]
        broker_id = self.random.choice(down if down and self.random.random() < 0.7 else BROKERS)
        incarnation = self.incarnation % 256 or 1
        is_lossy = self.random.random() < 0.3
        if is_lossy:
            self.lossy[bytes([incarnation]) * 16] = None
        try:
            self.world.register(broker_id, incarnation, record_loss=LOSS_MAYBE if is_lossy else LOSS_NO)
        except BrokerError:
            self.lossy.pop(bytes([incarnation]) * 16, None)
            raise

    def die(self) -> None:
        self.world.kill_broker(self.a_broker())

    def shut_down(self) -> None:
        self.world.heartbeat(self.a_broker(), want_shut_down=True)

    def want_fence(self) -> None:
        self.world.heartbeat(self.a_broker(), want_fence=True)

    def let_time_pass(self) -> None:
        self.world.now += self.random.uniform(0, 2)
        self.world.controller.fence_expired()
        self.world.commit()

    def create(self) -> None:
        name = f"t{self.random.randrange(6)}"
        topic = CreatableTopic(name, self.random.randint(1, 4), self.random.randint(1, 4))
        self.world.call(apis.CREATE_TOPICS, CreateTopicsRequest([topic]))

    def grow(self) -> None:
        found = self.a_partition()
        if found is not None:
            topic = self.world.image.topic(found[0])
            assert topic is not None
            if len(topic.partitions) < 10:
                grown = CreatePartitionsTopic(found[0], len(topic.partitions) + 1)
                self.world.call(apis.CREATE_PARTITIONS, CreatePartitionsRequest([grown]))

    def delete(self) -> None:
        found = self.a_partition()
        if found is not None:
            self.world.call(apis.DELETE_TOPICS, DeleteTopicsRequest([DeleteTopicState(found[0])]))

    def elect(self) -> None:
        self.world.call(apis.ELECT_LEADERS, ElectLeadersRequest(PREFERRED_ELECTION, None))

    def fail_over(self) -> None:
        self.world.controller.on_resign(self.epoch)
        self.epoch += 1
        self.world.become_active(self.epoch)

    def configure(self) -> None:
        found = self.a_partition()
        if found is not None:
            key, value = self.random.choice([("retention.ms", "5"), *(("min.insync.replicas", str(n)) for n in (1, 2, 3, 4))])
            change = AlterableConfig(key, self.random.choice([CONFIG_SET, CONFIG_DELETE]), value)
            resource = AlterConfigsResource(RESOURCE_TOPIC, found[0], [change])
            self.world.call(apis.INCREMENTAL_ALTER_CONFIGS, IncrementalAlterConfigsRequest([resource]))

    def producer_ids(self) -> None:
        broker_id = self.a_broker()
        self.world.call(apis.ALLOCATE_PRODUCER_IDS, AllocateProducerIdsRequest(broker_id, self.world.epoch(broker_id)))

    def named_producer(self) -> None:
        broker_id = self.a_broker()
        name, work_epoch = self.random.choice("abc"), self.random.randrange(4)
        request = InitNamedProducerRequest(broker_id, self.world.epoch(broker_id), name, work_epoch)
        self.world.call(apis.INIT_NAMED_PRODUCER, request)

    def acls(self) -> None:
        name = f"t{self.random.randrange(3)}"
        if self.random.random() < 0.3:
            self.world.call(apis.DELETE_ACLS, security.DeleteAclsRequest([security.AclFilter(resource_name=name)]))
        else:
            operation = self.random.choice([security.READ, security.WRITE])
            rule = security.AclBinding(security.TOPIC_RESOURCE, name, 3, "User:alice", "*", operation, security.ALLOW)
            self.world.call(apis.CREATE_ACLS, security.CreateAclsRequest([rule]))

    def credentials(self) -> None:
        user = self.random.choice("ab")
        if self.random.random() < 0.3:
            request = security.AlterUserScramCredentialsRequest([security.ScramCredentialDeletion(user, 1)])
        else:
            upsertion = security.ScramCredentialUpsertion(user, 1, 4096, b"salt", self.random.randbytes(32))
            request = security.AlterUserScramCredentialsRequest([], [upsertion])
        self.world.call(apis.ALTER_USER_SCRAM_CREDENTIALS, request)

    def quotas(self) -> None:
        entity = [security.QuotaEntityPart("user", self.random.choice(["alice", None]))]
        value = self.random.choice([None, 1.0, 2.0])
        entry = security.QuotaAlteration(entity, [security.QuotaOperation("request_percentage", value)])
        self.world.call(apis.ALTER_CLIENT_QUOTAS, security.AlterClientQuotasRequest([entry]))


def assert_index_is_that_of(index: PartitionIndex, image: MetadataImage) -> None:
    fresh = PartitionIndex(image)
    assert set(index.without_leader()) == set(fresh.without_leader())
    for broker_id in BROKERS:
        assert set(index.with_broker_in_isr(broker_id)) == set(fresh.with_broker_in_isr(broker_id))
        assert set(index.with_broker_in_elr(broker_id)) == set(fresh.with_broker_in_elr(broker_id))
        assert index.led_by(broker_id) == fresh.led_by(broker_id)


@pytest.mark.parametrize("seed", range(10))
def test_invariants_hold_after_every_record_of_thousands_of_random_steps(seed: int) -> None:
    """The first seeds play at level 0 of the metadata."""
    levels = LEVEL_0_ONLY if seed < 3 else SUPPORTED
    chaos = Chaos(seed, levels)
    world = chaos.world
    watcher = Watcher(world)
    watcher.lossy = chaos.lossy
    snapshots: list[tuple[MetadataImage, list[AnyRecord]]] = []
    for step in range(2500):
        chaos.step()
        watcher.catch_up()
        if step % 500 == 0:
            active = world.controller.active
            assert active is not None
            assert_index_is_that_of(active.index, world.image)
            snapshots.append((world.image, list(world.image.to_records())))
    assert watcher.elections > 100
    assert watcher.leaderless > 10
    metrics = world.controller.metrics
    assert sum(metrics.elections_by_cause.values()) == metrics.elections, "an election has no cause"
    if world.image.feature_level:
        assert min(watcher.elected_from_elr, watcher.struck) >= 5
    assert world.replayed() == world.image
    for image, records in snapshots:
        loaded = MetadataImage.from_records(records, image.offset, image.epoch)
        assert loaded == image
        for base, last in world.quorum.batches:
            if base > image.offset:
                batch = [decode_record(r) for _, r in world.quorum.log[base : last + 1]]
                loaded = loaded.apply(batch, last, world.quorum.log[base][0]).image
        assert loaded == world.image


def test_the_random_steps_reach_every_refusal_that_matters() -> None:
    """Otherwise the test above would prove less than it seems to."""
    reached: set[ErrorCode] = set()
    for seed in range(4):
        chaos = Chaos(seed)
        for _ in range(2500):
            chaos.step()
        reached |= set(chaos.refusals)
    assert reached >= {
        ErrorCode.INELIGIBLE_REPLICA,
        ErrorCode.STALE_BROKER_EPOCH,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.DUPLICATE_BROKER_REGISTRATION,
    }
