"""I1, I2, I3, I14, I18, I19, I30, I31: the decisions of the controllers, and the metadata on all nodes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from invariant_bench import TOPIC_ID, Bench, EmittedOnly, Event, bench

from strandline.controller.metadata.image import NO_LEADER, MetadataImage
from strandline.controller.metadata.records import (
    METADATA_TOPIC,
    METADATA_TOPIC_ID,
    RECOVERING,
    AnyRecord,
    BrokerRegistrationChangeRecord,
    FeatureLevelRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    TopicRecord,
    UncleanElectionRecord,
    encode_record,
)
from strandline.protocol.feature_names import METADATA_VERSION
from strandline.protocol.messages.common import SnapshotId
from strandline.protocol.records.builder import encode_values
from strandline.storage.log.log import Log, LogConfig
from strandline.storage.memory.memory_files import MemoryFiles
from strandline.testing.simulation.invariants import leaders, membership, quorum, reports
from strandline.testing.simulation.invariants.ghosts import Loss, ReplicaGhost
from strandline.testing.simulation.invariants.observer import Invariants
from strandline.testing.simulation.invariants.violation import Violation
from strandline.testing.simulation.observation.probes import Probes

FENCE, UNFENCE = 1, -1


@pytest.fixture
def at() -> Iterator[Bench]:
    with bench() as found:
        yield found
        if found.invariants.failure is not None:
            raise found.invariants.failure


# -- I2, I3 -------------------------------------------------------------------------------------------------------------


def test_i2_a_leader_outside_of_the_isr(at: Bench):
    with at.flags("I2", "broker 1 is the leader, but it is not in the ISR [2, 3]"):
        at.change(isr=(2, 3))


def test_i2_an_isr_of_strangers(at: Bench):
    with at.flags("I2", "is no subset of the replicas"):
        at.commit(PartitionRecord(TOPIC_ID, 1, (1, 2), (1, 2, 3), 1))


def test_i2_a_fenced_broker_in_the_isr(at: Bench):
    """KIP-841: the broker was fenced, and the partitions that had it in their ISR were not changed."""
    with at.flags("I2", "broker 3 is in the ISR [1, 2, 3] (leader 1), but it is fenced"):
        at.commit(BrokerRegistrationChangeRecord(3, 2, fenced=FENCE))


def test_fencing_and_its_isr_changes_are_one_batch(at: Bench):
    at.commit(PartitionChangeRecord(TOPIC_ID, 0, isr=(1, 2)), BrokerRegistrationChangeRecord(3, 2, fenced=FENCE))


def test_the_last_member_stays_written_down_when_it_dies(at: Bench):
    """This member alone has every record, and no other broker may be elected."""
    at.change(isr=(3,), leader=3)
    at.commit(PartitionChangeRecord(TOPIC_ID, 0, leader=-1), BrokerRegistrationChangeRecord(3, 2, fenced=FENCE))
    at.commit(at.registration_of(3, epoch=at.offset, number=2))
    at.change(leader=3)
    at.change(isr=(3, 1))


def test_i2_member_of_the_isr_was_never_proven_complete(at: Bench):
    """The broker returned, perhaps with an empty disk, and was not removed from the ISR."""
    with at.flags("I2", "was last known to be complete with broker epoch 2"):
        at.commit(at.registration_of(3, epoch=at.offset, number=2))


def test_i3_a_leader_from_outside_of_the_isr(at: Bench):
    at.change(isr=(1, 2))
    with at.flags("I3", "broker 3 is elected in epoch 1 from outside the ISR [1, 2]"):
        at.change(isr=(3,), leader=3)


def elect_uncleanly(at: Bench, lost: tuple[int, int] = (0, -1)) -> None:
    """Elect broker 3 in epoch 1, from outside of the ISR, with a report."""
    change = PartitionChangeRecord(TOPIC_ID, 0, isr=(3,), leader=3, leader_recovery_state=RECOVERING)
    at.commit(change, UncleanElectionRecord(TOPIC_ID, 0, 3, 1, (), 1, 0, 0, *lost, "aggressive", 0))


def test_i31_an_unclean_election_without_a_report(at: Bench):
    at.change(isr=(1, 2))
    with at.flags("I31", "broker 3 is elected uncleanly in epoch 1, but there is no report"):
        at.change(isr=(3,), leader=3, leader_recovery_state=RECOVERING)


@pytest.mark.parametrize("lost", [(3, -1), (2, 4), (2, 2), (0, 0)])
def test_i31_a_report_that_does_not_name_a_lost_record(at: Bench, lost: tuple[int, int]):
    at.change(isr=(1, 2))
    elect_uncleanly(at, lost)
    with at.flags("I31", "broker 3, elected uncleanly in epoch 1, lacks the committed records 2 to 4, but the report says"):
        reports.on_loss(at.orders, Loss(2, 5, 3, 1))


def test_i31_only_unclean_elections_have_reports(at: Bench):
    at.change(isr=(1, 2))
    elect_uncleanly(at, (2, 5))
    for loss in Loss(2, 5, 3, 1), Loss(3, 4, 3, 1), Loss(0, 9, 3, 2):
        reports.on_loss(at.orders, loss)


def test_recorded_unclean_election_counts_as_a_reported_loss(at: Bench):
    at.change(isr=(1, 2))
    elect_uncleanly(at)
    assert at.orders.reported == ["unclean election of broker 3"]


def test_i30_others_in_the_isr_during_a_recovery(at: Bench):
    at.change(isr=(1, 2))
    elect_uncleanly(at)
    with at.flags("I30", "broker 3 recovers from an unclean election, but the ISR is [3, 1]"):
        at.change(isr=(3, 1))


def test_i30_a_proposal_of_others_during_a_recovery(at: Bench):
    at.change(isr=(1, 2))
    elect_uncleanly(at)
    epoch = max(at.orders.history)
    membership.check_proposal(at.replica(3), epoch, [3])
    membership.check_proposal(at.replica(3), epoch - 1, [3, 1])
    with at.flags("I30", "broker 3 recovers from an unclean election, but proposes the ISR [3, 1]"):
        membership.check_proposal(at.replica(3), epoch, [3, 1])


def test_i3_an_elr_at_level_0(at: Bench):
    with at.flags("I3", "level 0 of the metadata has no ELR"):
        at.change(isr=(1, 2), eligible_leader_replicas=(3,))


def test_i3_a_member_of_isr_and_elr(at: Bench):
    at.ghosts.metadata.feature_level = 1
    with at.flags("I3", "has members of the ISR"):
        at.change(isr=(1, 2), eligible_leader_replicas=(2, 3))


def test_i3_a_last_leader_beside_a_leader(at: Bench):
    at.ghosts.metadata.feature_level = 1
    with at.flags("I3", "is still recorded"):
        at.change(isr=(1, 2), last_known_elr=(1,))


def test_i3_an_elr_beside_a_large_isr(at: Bench):
    at.ghosts.metadata.feature_level = 1
    at.change(isr=(1, 2), eligible_leader_replicas=(3,))
    records: list[AnyRecord] = [
        FeatureLevelRecord(METADATA_VERSION, 1),
        TopicRecord("orders", TOPIC_ID),
        PartitionRecord(TOPIC_ID, 0, (1, 2, 3), (1, 2), 1, 0, 1, eligible_leader_replicas=(3,)),
    ]
    with at.flags("I3", "has reached the min ISR 1"):
        membership.compare_with_image(at.ghosts, MetadataImage.from_records(records, 5, 1), ({at.orders.key: None}, {}))


def test_i3_a_process_that_lost_records_is_eligible(at: Bench):
    at.ghosts.metadata.feature_level = 1
    at.replica(3).is_unclean = True
    at.orders.committed.extend(0, 5)
    with at.flags("I3", "returned with fewer records than it had"):
        at.change(isr=(1, 2), eligible_leader_replicas=(3,))


# -- I14 ----------------------------------------------------------------------------------------------------------------


def test_i14_a_broker_epoch_that_is_not_the_offset_of_its_registration(at: Bench):
    at.change(isr=(1, 2))
    with at.flags("I14", "broker 3 is registered with epoch 1 at metadata offset"):
        at.commit(at.registration_of(3, epoch=1, number=2))


def test_the_same_process_registers_again_and_keeps_its_epoch(at: Bench):
    at.commit(at.registration_of(3))


def test_i14_change_of_an_earlier_process(at: Bench):
    with at.flags("I14", "changes broker 3 with epoch 0, but it is registered with epoch 2"):
        at.commit(BrokerRegistrationChangeRecord(3, 0, fenced=UNFENCE))


def test_i14_a_broker_that_goes_back_to_an_old_partition_epoch(at: Bench):
    at.change(isr=(1, 2))
    at.take_role(1)
    at.step()
    at.partitions[1].leader_state.partition_epoch = 0  # type: ignore[union-attr]
    at.ghosts.disturbed[at.orders] = None
    with at.flags("I14", "went back from (leader epoch, partition epoch) (0, 1) to (0, 0)"):
        at.step()


def test_i19_a_broker_in_an_epoch_that_was_never_committed(at: Bench):
    at.partitions[2]._partition_epoch = 7
    at.ghosts.disturbed[at.orders] = None
    with at.flags("I19", "which was never committed"):
        at.step()


def test_i14_a_heartbeat_of_an_earlier_process(at: Bench):
    image = MetadataImage.from_records([at.registration_of(3, epoch=9)], 9, 1)
    membership.check_heartbeat(image, 3, 9)
    with at.flags(
        "I14", "a heartbeat of broker 3 with broker epoch 2 was accepted, but the broker is registered with broker epoch 9"
    ):
        membership.check_heartbeat(image, 3, 2)


def test_i14_an_image_that_forgets_to_raise_the_partition_epoch(at: Bench):
    at.change(isr=(1, 2))
    records: list[AnyRecord] = [TopicRecord("orders", TOPIC_ID), PartitionRecord(TOPIC_ID, 0, (1, 2, 3), (1, 2), 1)]
    with at.flags("I14", "the records result in ((1, 2, 3), (1, 2), 1, 0, 1,"):
        membership.compare_with_image(at.ghosts, MetadataImage.from_records(records, 5, 1), ({at.orders.key: None}, {}))


# -- the quorum -----------------------------------------------------------------------------------------------------------


class Quorum:
    """The metadata logs of controllers 101 to 103, written by hand."""

    def __init__(self, invariants: Invariants, events: list[Event]) -> None:
        self.invariants, self.ghosts = invariants, invariants.ghosts
        self.events = events
        self.ghosts.metadata.voters = (101, 102, 103)
        self.files = {node: MemoryFiles(Random(node)) for node in self.ghosts.metadata.voters}
        self.logs: dict[int, Log] = {}
        for node, files in self.files.items():
            files.make_dirs("/data/__cluster_metadata-0")
            server = SimpleNamespace(incarnation_id=bytes([node]) * 16, has_quorum=False, servers=[])
            invariants.on_process(node, server, files)
            self.logs[node] = open_log(files)
            files.fsync_dir("/data/__cluster_metadata-0")
            files.fsync_dir("/data")
            files.fsync_dir("/")

    def replica(self, node: int) -> ReplicaGhost:
        return self.ghosts.metadata.log.replicas[node]

    def elect(self, node: int, epoch: int) -> None:
        self.invariants.on_quorum_leader(node, epoch)
        self.append(node, epoch)

    def append(self, node: int, epoch: int, *records: AnyRecord) -> None:
        values = [encode_record(record) for record in records] or [b""]
        batch = bytearray(encode_values(values, 0))
        if not records:  # stands for the leader's own control record
            batch = bytearray(encode_values([b""], 0))
            batch[21:23] = (0x20).to_bytes(2, "big")
            from strandline.protocol.records.batch import compute_crc

            batch[17:21] = compute_crc(batch, 0, len(batch)).to_bytes(4, "big")
        self.logs[node].append_as_leader(batch, epoch, 0)

    def copy(self, source: int, *targets: int) -> None:
        for target in targets:
            log, here = self.logs[source], self.logs[target]
            read = log.read(here.log_end_offset, 1 << 20, log.log_end_offset)
            here.append_as_follower(b"".join(bytes(buffer) for buffer in read.buffers), 1 << 20)

    def flush(self, *nodes: int) -> None:
        for node in nodes:
            self.logs[node].flush()

    def commit(self, node: int, epoch: int | None, offset: int) -> None:
        self.invariants.on_quorum_high_watermark(self.replica(node), offset, epoch)

    def vote(self, voter: int, epoch: int, candidate: int, *, written: tuple[int, int] | None) -> None:
        path = "/data/__cluster_metadata-0/quorum-state"
        if written is not None:
            state = json.dumps({"leaderEpoch": written[0], "votedId": written[1]}).encode()
            self.files[voter].write_atomic(path, state)
        self.invariants.on_vote(voter, epoch, candidate, path)


def open_log(files: MemoryFiles) -> Log:
    return Log.open(
        files,
        "/data/__cluster_metadata-0",
        topic=METADATA_TOPIC,
        partition=0,
        topic_id=METADATA_TOPIC_ID,
        config=LogConfig(message_timestamp_after_max_ms=2**63 - 1),
        clean_shutdown=False,
        now_ms=0,
    )


@pytest.fixture
def voters() -> Iterator[Quorum]:
    trace = EmittedOnly()
    invariants = Invariants(trace)
    with Probes(invariants):
        yield Quorum(invariants, trace.events)
        if invariants.failure is not None:
            raise invariants.failure


def committed(voters: Quorum) -> Quorum:
    """Controller 101 leads in epoch 1; a broker is registered."""
    voters.elect(101, 1)
    voters.append(101, 1, register(1, offset=1))
    voters.copy(101, 102)
    voters.flush(101, 102)
    voters.commit(101, 1, 2)
    return voters


def register(broker: int, *, offset: int) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(broker, offset, bytes([broker]) * 16)


def breaks(invariant: str, text: str) -> Any:
    return pytest.raises(Violation, match=f"^{invariant}: .*{text}")


def test_entry_on_the_disks_of_a_majority_is_committed(voters: Quorum):
    committed(voters)
    assert [entry[:3] for entry in voters.ghosts.metadata.entries] == [(0, 0, 1), (1, 1, 1)]
    assert voters.ghosts.metadata.brokers[1].epoch == 1
    assert voters.ghosts.metadata.images[1].brokers[1].broker_epoch == 1


def test_batches_that_commit_together_are_all_emitted(voters: Quorum):
    """A page about a run reads these events: each state of a broker or partition has its own, in order."""
    voters.elect(101, 1)
    voters.append(101, 1, register(1, offset=1))
    voters.append(101, 1, BrokerRegistrationChangeRecord(1, 1, UNFENCE))
    voters.append(101, 1, TopicRecord("orders", TOPIC_ID), PartitionRecord(TOPIC_ID, 0, (1,), (1,), 1))
    voters.append(101, 1, BrokerRegistrationChangeRecord(1, 1, FENCE), PartitionChangeRecord(TOPIC_ID, 0, leader=NO_LEADER))
    voters.copy(101, 102)
    voters.flush(101, 102)
    voters.commit(101, 1, voters.logs[101].log_end_offset)
    emitted = [event for event in voters.events if event[0].startswith("metadata.")]
    assert [kind for kind, *_ in emitted] == [
        "metadata.broker", "metadata.broker", "metadata.topic", "metadata.partition", "metadata.broker", "metadata.partition"
    ]  # fmt: skip
    assert [fields["fenced"] for kind, _, _, fields in emitted if kind == "metadata.broker"] == [True, False, True]


def test_i1_two_controllers_that_lead_the_quorum_in_one_epoch(voters: Quorum):
    voters.elect(101, 1)
    with breaks("I1", "leads the quorum in epoch 1, but controller 101"):
        leaders.on_quorum_leader(voters.ghosts, voters.ghosts.processes[102], 1)


def test_i18_a_commit_that_only_the_leader_has(voters: Quorum):
    voters.elect(101, 1)
    voters.copy(101, 102)
    voters.flush(101)
    with breaks("I18", r"only \[101\] have it on disk"):
        voters.commit(101, 1, 1)


def test_i18_a_commit_by_counting_copies_of_an_older_epochs_records(voters: Quorum):
    """Raft, figure 8."""
    voters.elect(101, 1)
    voters.append(101, 1, register(1, offset=1))
    voters.copy(101, 102, 103)
    voters.flush(101, 102, 103)
    voters.invariants.on_quorum_leader(101, 3)
    with breaks("I18", "but the last record there is of epoch 1"):
        voters.commit(101, 3, 2)


def test_i18_a_new_leader_commits_what_it_found_before_a_record_of_its_own(voters: Quorum):
    """This is a violation even if the record happens to be committed already."""
    committed(voters)
    voters.elect(102, 2)
    with breaks("I18", "leads in epoch 2 and commits up to 2, but the last record there is of epoch 1"):
        voters.commit(102, 2, 2)


def test_i18_a_flush_that_did_not_reach_the_disk(voters: Quorum):
    voters.elect(101, 1)
    with breaks("I18", "is not durable"):
        quorum.on_flushed(voters.replica(101))


def test_i18_a_fetch_ahead_of_the_disk(voters: Quorum):
    voters.elect(101, 1)
    voters.copy(101, 102)
    with breaks("I18", "fetches from offset 1, but its disk holds only the records below 0"):
        quorum.on_fetch_leaves(voters.ghosts, 102, 1)
    voters.flush(102)
    quorum.on_fetch_leaves(voters.ghosts, 102, 1)


def test_i18_a_vote_that_a_crash_would_forget(voters: Quorum):
    with breaks("I18", r"its disk holds \(epoch, vote\) \(-1, -1\)"):
        voters.vote(102, 4, 101, written=None)
    with breaks("I18", r"its disk holds \(epoch, vote\) \(3, 103\)"):
        voters.vote(103, 4, 101, written=(3, 103))


def test_a_vote_on_the_disk_may_leave(voters: Quorum):
    voters.vote(102, 4, 101, written=(4, 101))
    voters.vote(102, 4, 101, written=None)
    voters.vote(103, 4, 101, written=(4, 101))


def test_i18_a_second_vote_in_an_epoch(voters: Quorum):
    voters.vote(102, 4, 101, written=(4, 101))
    with breaks("I18", "votes for 103 in epoch 4, but it has already voted for 101"):
        voters.vote(102, 4, 103, written=(4, 103))


def test_i19_follower_treats_uncommitted_entries_as_committed(voters: Quorum):
    committed(voters)
    voters.append(101, 1, register(2, offset=2))
    voters.copy(101, 102)
    with breaks("I19", "has 3 as the quorum's high watermark, but it is 2"):
        voters.commit(102, None, 3)


def test_i19_a_leader_without_a_committed_record(voters: Quorum):
    committed(voters)
    with breaks("I19", "controller 103 is elected in epoch 2, but lacks the committed metadata from offset 0 on"):
        quorum.on_leader(voters.ghosts, voters.replica(103), 2)


def test_i19_committed_metadata_that_is_truncated(voters: Quorum):
    committed(voters)
    voters.logs[102].truncate_to(1)
    found, voters.invariants.failure = voters.invariants.failure, None
    assert isinstance(found, Violation)
    assert found.invariant == "I19"
    assert "the committed records 1 to 1" in found.text


def test_i19_broker_applies_uncommitted_metadata(voters: Quorum):
    committed(voters)
    quorum.on_applied(voters.ghosts, "broker", 1, (1, 1, 1), None)
    with breaks("I19", r"broker 1 applies the metadata batch \(2, 2, 1\)"):
        quorum.on_applied(voters.ghosts, "broker", 1, (2, 2, 1), None)


def test_i19_other_records_at_the_same_offset(voters: Quorum):
    committed(voters)
    with breaks("I19", "controller 103 applies"):
        quorum.on_applied(voters.ghosts, "controller", 103, (1, 1, 1), [encode_record(register(7, offset=1))])


def test_i19_an_image_that_misses_a_change(voters: Quorum):
    committed(voters)
    empty = MetadataImage.EMPTY.apply([], 1, 1).image
    with breaks("I19", "at metadata offset 1, broker 5 has None for broker 1"):
        quorum.compare_images(voters.ghosts, "broker 5", 5, -1, empty)
    with breaks("I19", r"differs from the committed metadata at offset 1 in partitions \[\], brokers \[1\]"):
        quorum.check_same_state("broker 5", 5, empty, voters.ghosts.metadata.images[1])


def test_i19_an_image_that_ends_inside_of_a_batch(voters: Quorum):
    committed(voters)
    with breaks("I19", "no committed batch ends there"):
        quorum.compare_images(voters.ghosts, "broker 5", 5, -1, MetadataImage.EMPTY.apply([], 7, 1).image)


@pytest.mark.parametrize(
    ("snapshot_id", "text"),
    [(SnapshotId(3, 1), "committed only up to 2"), (SnapshotId(2, 4), "up to 2 of epoch 4, but no committed batch ends there")],
)
def test_i19_snapshot_of_uncommitted_metadata(voters: Quorum, snapshot_id: SnapshotId, text: str):
    committed(voters)
    with breaks("I19", text):
        quorum.on_snapshot(voters.ghosts, 103, snapshot_id, None)


def test_i19_a_snapshot_with_another_state(voters: Quorum):
    committed(voters)
    quorum.on_snapshot(voters.ghosts, 103, SnapshotId(2, 1), voters.ghosts.metadata.images[1])
    with breaks("I19", "differs from the committed metadata"):
        quorum.on_snapshot(voters.ghosts, 103, SnapshotId(2, 1), MetadataImage.EMPTY.apply([], 1, 1).image)


def test_quorum_without_most_of_its_disks_is_no_longer_judged(voters: Quorum):
    committed(voters)
    voters.ghosts.permit_loss("two of three disks were replaced")
    voters.elect(103, 5)
    voters.copy(103)
    voters.flush(103)
    voters.commit(103, 5, 1)
    assert voters.ghosts.metadata.is_given_up
    voters.invariants.note(Violation("I1", "an epoch that there was before"))
    assert voters.invariants.failure is None
