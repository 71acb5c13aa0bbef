"""Coverage marks: a name for each thing that a simulation should go through, and how often it happened in a run.

A sweep that never saw a diverging truncation has not tested one, however many seeds it ran. So a sweep in which a mark stays at
zero fails: the nemesis is too weak, too strong, or aims elsewhere. What happens in one seed of fifty must be seen by a sweep of
some hundred seeds, what happens in one of three hundred by a sweep of thousands. Most marks are log lines of the product. The
others are seen from outside, by wrapping a function while the simulation runs (`watching.py`).

    with Marks().watching(world.trace) as marks:
        world.run(story)
    report.marks = marks.counts
    ...
    missing(total(report.marks for report in reports))      # must be empty

`MARKS` holds what can happen today. `WAITING` names the marks of features that are not built yet.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from errno import EDQUOT, EIO, ENOSPC
from typing import Any, Self

from strandline.broker.partition.partition import Role
from strandline.broker.partition.partition_state import PendingExpandIsr, PendingShrinkIsr
from strandline.broker.produce.produce_handler import DelayedProduce
from strandline.controller.cluster_control import BrokerControlState
from strandline.controller.metadata.records import NO_LEADER
from strandline.controller.raft.roles import Candidate, Leader
from strandline.protocol.errors import ErrorCode
from strandline.testing.simulation.observation.watching import Called, OnCall, OnEvent, Sight, Watch, said

C = ErrorCode

SWEEP, RARE, SCENARIO = "sweep", "rare", "scenario"


@dataclass(frozen=True, slots=True)
class Mark:
    meaning: str
    """What happened when the mark is counted, in one line."""
    sights: tuple[Sight, ...]
    """Any of these counts as the mark."""
    reach: str = SWEEP
    """SWEEP: a few hundred random seeds must reach it. RARE: some thousand seeds must. SCENARIO: only scenarios, other kinds of
    clusters, or tests reach it."""


class Marks:
    """The counts of one run."""

    def __init__(self, table: Mapping[str, Mark] | None = None) -> None:
        self.table = MARKS if table is None else table
        self.counts: dict[str, int] = dict.fromkeys(self.table, 0)
        self._watch = Watch({name: mark.sights for name, mark in self.table.items()}, self._see)

    def _see(self, name: str) -> None:
        self.counts[name] += 1

    def on_event(self, kind: str, node: int, partition: str, fields: Mapping[str, Any]) -> None:
        """Count an event of the trace, for a caller that does not use `watching`."""
        self._watch.on_event(kind, node, partition, fields)

    @contextlib.contextmanager
    def watching(self, trace: Any = None) -> Iterator[Self]:
        """Within the block, count calls and the events of the trace."""
        with self._watch.installed(trace):
            yield self


def missing(counts: Mapping[str, int], *, reach: str | None = SWEEP) -> list[str]:
    """The marks that stayed at zero, of this reach; None: of all."""
    return [name for name, mark in MARKS.items() if not counts.get(name) and reach in (None, mark.reach)]


def total(reports: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The sum of the counts of many runs, in the order of the table."""
    counts = dict.fromkeys(MARKS, 0)
    for report in reports:
        for name, count in report.items():
            counts[name] = counts.get(name, 0) + count
    return counts


# -- how to see them --------------------------------------------------------------------------------------------------


def _refused(target: str, *codes: int) -> OnCall:
    """The call raised one of these wire errors."""
    return OnCall(target, lambda call: call.code in codes, raised=True)


def _returned(target: str, value: object) -> OnCall:
    return OnCall(target, lambda call: call.result is value)


def _field(name: str, *values: object) -> Callable[[Mapping[str, Any]], bool]:
    return lambda fields: fields.get(name) in values


def _begins(name: str, text: str) -> Callable[[Mapping[str, Any]], bool]:
    return lambda fields: str(fields.get(name)).startswith(text)


def _elects(call: Called) -> bool:
    """One of the returned records names a leader."""
    return any(getattr(record, "leader", -1) >= 0 for record in call.result)


def _change_of_isr(call: Called) -> tuple[frozenset[int], frozenset[int]]:
    return frozenset(call.before), frozenset(call.args[1])


def _high_watermark_waits(call: Called) -> bool:
    log = call.me.log
    return not call.result and call.me.is_under_min_isr and log.high_watermark < log.log_end_offset


def _held_by_candidate(call: Called) -> bool:
    """No other member of the maximal ISR is as far behind as the follower that is about to join."""
    leader_state, end = call.me, call.me.log.log_end_offset
    members = [r.log_end_offset for broker_id, r in leader_state.replicas.items() if broker_id in leader_state.isr.maximal]
    return bool(call.result < min([end, *members]))


def _held_by(kind: type[Any], who: Callable[[Any], Iterable[int]]) -> Callable[[Called], bool]:
    """The high watermark waits for the members that a pending proposal adds or removes."""

    def when(call: Called) -> bool:
        leader_state, isr = call.me, call.me.isr
        if not isinstance(isr, kind):
            return False
        concerned = tuple(who(isr))
        ends: dict[int, int] = {i: r.log_end_offset for i, r in leader_state.replicas.items() if i in isr.maximal}
        others = [end for broker_id, end in ends.items() if broker_id not in concerned]
        held_at = min([leader_state.log.log_end_offset, *others])
        return any(ends.get(broker_id) == call.result < held_at for broker_id in concerned)

    return when


def _waits_for_epoch_start(call: Called) -> bool:
    replica = call.args[1]
    return not call.result and replica.log_end_offset >= call.me.log.high_watermark


def _hw_lags_behind_epoch(call: Called) -> bool:
    return call.result is True and bool(call.me.log.high_watermark < call.me.leader_state.epoch_start_offset)


def _majority_is_of_older_epochs(call: Called) -> bool:
    """Raft's figure 8: a majority has the entry, and still it is not committed, because no entry of the present epoch follows
    it."""
    node, role = call.me.state, call.me.state.role
    if node.high_watermark >= role.epoch_start_offset:
        return False
    ends = sorted([role.flushed_offset, *[progress.end_offset for progress in role.voters.values()]], reverse=True)
    return bool(node.high_watermark < min(ends[len(ends) // 2], node.log.end_offset) <= role.epoch_start_offset)


def _is_late(fetcher: Any, plan: Any, response: Any, now: float) -> bool:
    """The response contains a partition that the fetcher has dropped, received again, or fetched since."""
    if plan.generation != fetcher._generation:
        return False
    for answer in response.partitions:
        entry = fetcher._entries.get((answer.topic_id, answer.partition))
        if entry is None or entry.sent is None or entry.sequence > plan.sequence:
            return True
    return False


def _returned_to_leader(partition: Any, registration: Any) -> bool:
    """A follower of this leader is about to follow it again in a later epoch, and was not notified of the leader in between."""
    is_same = registration.leader == partition.leader_id >= 0
    return is_same and registration.leader_epoch > partition.leader_epoch + 1 and partition.role is Role.FOLLOWER


def _fetch_error(*codes: int) -> OnCall:
    return OnCall(_FETCH + "Fetch._add_error", lambda call: call.args[2] in codes)


def _produce_error(*codes: int) -> OnCall:
    return OnCall(_PRODUCE + "ProduceHandler._refuse", lambda call: call.args[3].code in codes)


def _disk_error(when: Callable[[str, int], bool]) -> OnCall:
    return OnCall("storage.disk:DiskError.__init__", lambda call: when(call.args[1], call.args[3]))


def _all_succeeded(call: Called) -> bool:
    return not any(response.error_code for response in call.me._responses)


_PRODUCE = "broker.produce.produce_handler:"
_FETCH = "broker.fetch.fetch_handler:"
_CLUSTER = "client.cluster.cluster:"
_LEADERSHIP = "broker.partition.leader_state:LeaderState."
_SESSIONS = "broker.fetch.fetch_session:FetchSessionCache."
_ELECTIONS = "controller.raft.election_handler:ElectionHandler."
_LEADER = "controller.raft.leader_handler:LeaderHandler."
_QUEUE = "client.producer.partition_queue:PartitionQueue."

# -- the table --------------------------------------------------------------------------------------------------------

MARKS: dict[str, Mark] = {
    # The nemesis
    "node.crashed": Mark("a process was killed, its page cache lived on", (OnEvent("node.crashed", _field("lossy", False)),)),
    "node.crashed_lossy": Mark("a machine lost its power", (OnEvent("node.crashed", _field("lossy", True)),)),
    "node.paused": Mark("a process was stopped for a while", (OnEvent("node.paused"),)),
    # Elections
    "election.fencing": Mark(
        "a leader was elected because the one before was fenced",
        (OnCall("controller.controller:fence_broker", _elects), OnCall("controller.cluster_control:fence_broker", _elects)),
    ),
    "election.controlled_shutdown": Mark(
        "a leader was elected because the one before asked to be let go",
        (
            OnCall(
                "controller.cluster_control:_transition",
                lambda call: call.args[3] is BrokerControlState.CONTROLLED_SHUTDOWN and _elects(call),
            ),
        ),
    ),
    "election.preferred": Mark(
        "the lead was given back to the preferred replica",
        (OnCall("controller.replication_control:_elect_preferred", lambda call: call.result[0] == C.NONE),),
    ),
    "election.none_eligible": Mark(
        "the last member of an ISR went, and the partition has no leader",
        (
            OnCall(
                "controller.replication_control:change_partition",
                lambda call: call.result is not None and call.result.leader == NO_LEADER,
            ),
        ),
    ),
    "election.last_member_returned": Mark(
        "the last member of an ISR came back and leads again",
        (OnCall("controller.cluster_control:elect_leaderless", _elects),),
    ),
    # Brokers, as the controller sees them
    "broker.registered": Mark("a broker process was given a broker epoch", (said("broker.registered"),)),
    "broker.registered_again": Mark(
        "the same process registered once more, and kept its broker epoch",
        (OnCall("controller.cluster_control:_register_again"),),
    ),
    "broker.duplicate_refused": Mark(
        "a second process of one id was refused while the first one's session lived",
        (_refused("controller.cluster_control:_check_registration", C.DUPLICATE_BROKER_REGISTRATION),),
    ),
    "broker.cluster_id_refused": Mark(
        "a broker of another cluster was refused",
        (_refused("controller.cluster_control:_check_registration", C.INCONSISTENT_CLUSTER_ID),),
        RARE,
    ),
    "broker.epoch_stale": Mark(
        "the controller refused what an earlier incarnation had sent",
        (
            _refused("controller.replication_control:check_broker_epoch", C.STALE_BROKER_EPOCH),
            _refused("controller.cluster_control:check_broker_epoch", C.STALE_BROKER_EPOCH),
        ),
        RARE,
    ),
    "broker.unfenced": Mark("a broker may lead and be in ISRs", (said("broker.unfenced"),)),
    "broker.fenced_by_session": Mark("a session timed out", (said("broker.fencing", _begins("reason", "its session")),)),
    "broker.fenced_by_probe": Mark(
        "a connection broke, and nobody was found behind it", (said("broker.fencing", _begins("reason", "its connection")),)
    ),
    "broker.fenced_while_alive": Mark("a running broker learned that it is fenced", (said("broker.fenced"),)),
    "broker.shutdown_granted": Mark("a controlled shutdown went through", (said("broker.shutdown_granted"),)),
    "broker.standstill_detected": Mark(
        "a broker woke up and took no records before it had news", (said("broker.standstill_detected"),)
    ),
    "broker.produce_refused_after_standstill": Mark(
        "a produce met a broker that had just woken up", (OnCall("broker.process.standstill:_refuse"),)
    ),
    # ISR
    "isr.expanded": Mark(
        "a replica joined the ISR",
        (
            OnCall(
                _LEADERSHIP + "_install",
                lambda call: bool(_change_of_isr(call)[1] - _change_of_isr(call)[0]),
                lambda me, isr: me.isr.isr,
            ),
        ),
    ),
    "isr.shrunk": Mark(
        "a replica left the ISR",
        (
            OnCall(
                _LEADERSHIP + "_install",
                lambda call: bool(_change_of_isr(call)[0] - _change_of_isr(call)[1]),
                lambda me, isr: me.isr.isr,
            ),
        ),
    ),
    "isr.changed_by_controller": Mark(
        "the controller changed the ISR, not the leader", (said("isr.committed", _begins("reason", "the controller")),)
    ),
    "isr.member_lagged": Mark("a follower was too slow for the ISR", (said("isr.member_lagged"),)),
    "isr.member_lost_records": Mark(
        "a member asked for committed records that it had had", (said("isr.member_lost_records"),), RARE
    ),
    "isr.waits_for_epoch_start": Mark(
        "a follower had reached the HW, and not yet the start of the leader's epoch",
        (OnCall(_LEADERSHIP + "_is_in_sync", _waits_for_epoch_start),),
    ),
    "isr.refused_ineligible": Mark(
        "the controller refused a member that is fenced, leaving, or another incarnation",
        (said("isr.refused", _field("error", "INELIGIBLE_REPLICA")),),
    ),
    "isr.refused_stale": Mark(
        "the controller refused a proposal made on an old state",
        (said("isr.refused", _field("error", "INVALID_UPDATE_VERSION", "FENCED_LEADER_EPOCH", "NEW_LEADER_ELECTED")),),
    ),
    "isr.stale_answer_ignored": Mark(
        "an answer to a proposal came when newer metadata had superseded it",
        (
            said("isr.stale_answer_ignored"),
            OnCall(
                "broker.partition.alter_partition:AlterPartitionQueue.on_response",
                lambda call: call.before,
                lambda me, response: [item for item in me._in_flight or () if me._pending.get(item.key) is not item],
            ),
        ),
    ),
    "isr.proposal_retried": Mark(
        "a controller had no use for a proposal, and it was sent again", (said("alter_partition.retried"),)
    ),
    "isr.answer_lost": Mark(
        "a proposal got no answer and was sent again, so that two copies of it were on their way",
        (
            OnCall(
                "broker.partition.alter_partition:AlterPartitionQueue.on_lost",
                lambda call: call.me._doubtful,
            ),
        ),
    ),
    # High watermark
    "hw.waits_for_min_isr": Mark(
        "the HW stood still because the ISR was below the minimum",
        (OnCall(_LEADERSHIP + "maybe_increment_high_watermark", _high_watermark_waits),),
    ),
    "hw.waits_for_candidate": Mark(
        "the HW waited for a follower that is about to join the ISR",
        (OnCall(_LEADERSHIP + "_smallest_log_end", _held_by_candidate),),
    ),
    "hw.waits_for_added": Mark(
        "the HW waited for a member whose expansion was under way",
        (OnCall(_LEADERSHIP + "_smallest_log_end", _held_by(PendingExpandIsr, lambda isr: (isr.added,))),),
    ),
    "hw.waits_for_removed": Mark(
        "the HW waited for a member whose removal was under way",
        (OnCall(_LEADERSHIP + "_smallest_log_end", _held_by(PendingShrinkIsr, lambda isr: isr.removed)),),
    ),
    "hw.unknown_to_new_leader": Mark(
        "a new leader's HW was behind the start of its epoch",
        (OnCall("broker.partition.partition:Partition.make_leader", _hw_lags_behind_epoch),),
    ),
    "hw.latest_not_available": Mark(
        "a client asked such a leader for the latest offset, and had to wait",
        (_refused("broker.fetch.offsets_handler:_find", C.OFFSET_NOT_AVAILABLE),),
    ),
    # Produce
    "produce.parked": Mark(
        "an acks=all produce waited for the HW",
        (OnCall("broker.purgatory:Purgatory.park", lambda call: isinstance(call.args[1], DelayedProduce)),),
    ),
    "produce.acked": Mark(
        "the HW passed it, and it was acknowledged",
        (OnCall(_PRODUCE + "DelayedProduce.on_complete", _all_succeeded),),
    ),
    "produce.timed_out": Mark("its time was over first", (OnCall(_PRODUCE + "DelayedProduce.on_expiration"),)),
    "produce.not_enough_replicas": Mark("refused: the ISR is below the minimum", (_produce_error(C.NOT_ENOUGH_REPLICAS),)),
    "produce.not_enough_after_append": Mark(
        "the ISR fell below the minimum while it waited",
        (
            OnCall(
                _PRODUCE + "DelayedProduce.on_failed",
                lambda call: call.args[2] == C.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
            ),
        ),
    ),
    "produce.lost_leader": Mark(
        "the leadership ended while it waited",
        (OnCall(_PRODUCE + "DelayedProduce.on_failed", lambda call: call.args[2] == C.NOT_LEADER_OR_FOLLOWER),),
    ),
    "produce.not_leader": Mark("refused by a broker that does not lead", (_produce_error(C.NOT_LEADER_OR_FOLLOWER),)),
    "produce.duplicate": Mark(
        "a batch that was in the log already was answered with its first offsets",
        (OnCall("storage.log.log:Log.append_as_leader", lambda call: call.result.duplicate),),
    ),
    "produce.out_of_order": Mark(
        "a batch came before the one that belongs before it", (_produce_error(C.OUT_OF_ORDER_SEQUENCE_NUMBER),)
    ),
    "produce.old_producer_epoch": Mark(
        "a delayed copy of an earlier producer epoch was refused", (_produce_error(C.INVALID_PRODUCER_EPOCH),), SCENARIO
    ),
    # Fetch, at the leader
    "fetch.session_opened": Mark("a fetch session began", (OnCall(_SESSIONS + "_full", lambda call: call.result.id > 0),)),
    "fetch.session_continued": Mark("an incremental fetch", (OnCall(_SESSIONS + "_continue"),)),
    "fetch.session_evicted": Mark("a full cache gave a session's place away", (_returned(_SESSIONS + "_try_evict", True),)),
    "fetch.session_unknown": Mark(
        "a fetch named a session that is gone", (_refused(_SESSIONS + "_continue", C.FETCH_SESSION_ID_NOT_FOUND),)
    ),
    "fetch.session_epoch_wrong": Mark(
        "a fetch was not the session's next one", (_refused(_SESSIONS + "_continue", C.INVALID_FETCH_SESSION_EPOCH),), RARE
    ),
    "fetch.woken": Mark(
        "a parked fetch was answered because something came",
        (
            OnCall(
                _FETCH + "Fetch.try_complete",
                lambda call: not call.before and call.me.is_completed,
                lambda me: me.is_completed,
            ),
        ),
    ),
    "fetch.expired": Mark("a parked fetch was answered because its time was over", (OnCall(_FETCH + "Fetch.on_expiration"),)),
    "fetch.epoch_fenced": Mark("the asker was of an older leader epoch", (_fetch_error(C.FENCED_LEADER_EPOCH),)),
    "fetch.epoch_unknown": Mark("the asker was of a newer leader epoch", (_fetch_error(C.UNKNOWN_LEADER_EPOCH),)),
    "fetch.of_earlier_leadership": Mark(
        "a follower fetched with the epoch of an earlier leadership of the same broker, which leads again",
        (
            OnCall(
                "broker.partition.partition:Partition.leading_follower",
                lambda call: call.code == C.FENCED_LEADER_EPOCH and call.me.leader_state is not None,
                raised=True,
            ),
        ),
    ),
    "fetch.not_leader": Mark("the asked broker does not lead", (_fetch_error(C.NOT_LEADER_OR_FOLLOWER),)),
    "fetch.out_of_range": Mark("the asker's offset is not in the log", (_fetch_error(C.OFFSET_OUT_OF_RANGE),)),
    "fetch.diverging": Mark(
        "the asker's history is another one",
        (OnCall("broker.partition.partition:Partition.divergence", lambda call: call.result is not None),),
    ),
    "fetch.old_incarnation": Mark(
        "a follower fetched that has registered anew since",
        (_refused(_LEADERSHIP + "on_follower_fetch", C.NOT_LEADER_OR_FOLLOWER),),
        RARE,
    ),
    "fetch.ahead_of_hw": Mark(
        "a consumer asked beyond what this replica knows to be committed, and waited",
        (
            OnCall(
                _FETCH + "Fetch._visit_for_consumer",
                lambda call: call.args[1].fetch_offset > call.args[2].log.high_watermark,
            ),
        ),
    ),
    "purgatory.completed_before": Mark(
        "a parked request was completed a second time, and that changed nothing",
        (_returned("broker.purgatory:DelayedOperation.complete", False),),
        SCENARIO,
    ),
    # Followers
    "follower.truncated": Mark(
        "a follower cut a diverging tail", (said("partition.truncated", _field("reason", "diverging epoch")),)
    ),
    # A leader whose log ends below a follower's answers with the diverging epoch. OFFSET_OUT_OF_RANGE remains for a follower
    # that
    # has restarted at a later log start and has fetched nothing since.
    "follower.truncated_to_leader_end": Mark(
        "a follower was longer than its leader", (said("partition.truncated", _begins("reason", "the leader's log")),), SCENARIO
    ),
    "follower.truncated_epochs_only": Mark(
        "a truncation took no record, only epochs of which none was written",
        (
            OnCall(
                "storage.log.truncation:truncate_to",
                lambda call: call.result is False and len(call.me.epochs.entries) < call.before,
                lambda log, offset: len(log.epochs.entries),
            ),
        ),
    ),
    "follower.truncated_below_hw": Mark(
        "a replica that may have lost records cut below its own HW", (said("partition.truncated_below_hw"),), RARE
    ),
    "follower.restarted": Mark("a follower began anew at its leader's start", (said("partition.restarted"),), RARE),
    "follower.stale_response": Mark(
        "a fetch response answered a position that the follower no longer had",
        (_returned("broker.partition.partition:Partition.append_fetched", False),),
        RARE,
    ),
    "follower.late_response": Mark(
        "a fetch response held a partition that the follower had given up, or asked for anew, since the request",
        (OnCall("broker.replication.fetcher:FetcherCore.on_response", lambda call: call.before, _is_late),),
    ),
    "follower.leader_returned": Mark(
        "another broker led meanwhile, and the follower learned only that its own leader leads again in a later epoch",
        (
            OnCall(
                "broker.partition.partition:Partition.make_follower",
                lambda call: call.result and call.before,
                _returned_to_leader,
            ),
        ),
    ),
    # A leader checks the epoch and reads in one step: only a lying broker sends such a response.
    "follower.newer_epoch_ignored": Mark(
        "a response held records of a newer epoch than was asked with", (said("partition.newer_epoch_ignored"),), SCENARIO
    ),
    "follower.fenced": Mark("a follower's own metadata was behind its leader's", (said("fetcher.fenced"),)),
    "follower.session_lost": Mark("a follower had to open its session anew", (said("fetcher.session_lost"),)),
    "follower.connection_lost": Mark("a follower lost the connection to its leader", (said("fetcher.connection_lost"),)),
    "follower.repaired": Mark(
        "a follower dropped its damaged tail and fetched it anew", (said("partition.damaged_tail_dropped"),)
    ),
    # The disk, and logs
    "disk.full": Mark("a write met a full disk", (_disk_error(lambda operation, errno: errno in (ENOSPC, EDQUOT)),)),
    "disk.read_failed": Mark(
        "a sector could not be read", (_disk_error(lambda operation, errno: operation == "read" and errno == EIO),)
    ),
    "disk.write_failed": Mark("a write failed", (_disk_error(lambda operation, errno: operation == "write" and errno == EIO),)),
    "disk.fsync_failed": Mark("an fsync failed", (_disk_error(lambda operation, errno: operation == "fsync"),)),
    "log_dir.offline": Mark("a broker gave its log directory up", (said("log_dir.offline"),)),
    "log_dir.checkpoint_damaged": Mark("a checkpoint could not be believed", (said("log_dir.checkpoint_damaged"),), RARE),
    "log.rolled": Mark(
        "a new segment began",
        (OnCall("storage.log.log:Log.roll", lambda call: call.before, lambda log, *_: log.segments[-1].size),),
    ),
    "log.segments_deleted": Mark("retention let segments go", (said("log.segments_deleted"),)),
    "log.start_moved": Mark(
        "a log's start moved up without a truncation",
        (OnCall("storage.log.log:Log.increment_log_start_offset", lambda call: call.result),),
    ),
    "log.damaged": Mark("a batch failed its checksum", (said("log.damaged"),)),
    "log.tail_cut": Mark("recovery cut a torn tail", (said("log.tail_cut_in_recovery"),)),
    "log.checkpoint_clamped": Mark(
        "the disk had lost what a checkpoint vouched for",
        (
            OnCall(
                "storage.log.recovery:_settle",
                before=lambda log, *_: max(log.high_watermark, log.recovery_point) > log.log_end_offset,
                when=lambda call: call.before,
            ),
        ),
    ),
    "log.index_rebuilt": Mark(
        "an index did not fit its segment",
        (OnCall("storage.log.segment:Segment.rebuild_indexes", lambda call: call.me.size),),
    ),
    "log.epochs_found_again": Mark(
        "the leader epochs were read from the batches, all of them",
        (
            OnCall(
                "storage.log.recovery:_load_epochs",
                lambda call: call.result is None and any(s.size for s in call.me.segments),
            ),
        ),
    ),
    "log.producers_replayed": Mark(
        "producers' states were taken from the batches",
        (OnCall("storage.log.producer_recovery:_replay_producers", lambda call: len(call.me.producers)),),
    ),
    "logs.recovered_clean": Mark(
        "a broker found its logs as an orderly stop had left them",
        (said("logs.recovered", lambda fields: bool(fields.get("clean"))),),
    ),
    "logs.recovered_unclean": Mark(
        "a broker recovered its logs after a crash", (said("logs.recovered", lambda fields: not fields.get("clean")),)
    ),
    "topic.deleted": Mark("a topic's logs were deleted", (said("partition.deleted"),)),
    "log.stray": Mark(
        "a broker came back with the log of a topic that is gone", (said("logs.stray_found"), said("log_dir.log_set_aside"))
    ),
    # The quorum
    "raft.pre_vote_refused": Mark(
        "a voter that hears a leader refused a pre-vote", (_returned(_ELECTIONS + "_would_vote", False),)
    ),
    "raft.pre_vote_lost": Mark("a round of pre-votes was lost", (OnCall(_ELECTIONS + "lose_pre_vote"),)),
    "raft.vote_granted": Mark("a vote was given", (_returned(_ELECTIONS + "_may_vote", True),)),
    "raft.second_vote_refused": Mark(
        "a voter had voted for another candidate in this epoch",
        (
            OnCall(
                _ELECTIONS + "_may_vote",
                lambda call: call.result is False and call.me.state.election.voted_id not in (-1, call.args[1].replica_id),
            ),
        ),
    ),
    "raft.shorter_log_refused": Mark(
        "a candidate's log was less complete than the voter's", (_returned(_ELECTIONS + "_is_up_to_date", False),)
    ),
    "raft.became_leader": Mark("a controller became active", (said("quorum.became_leader"),)),
    "raft.election_lost": Mark(
        "a candidate did not become leader",
        (
            OnCall(
                "controller.raft.transitions:RoleTransitions._become",
                lambda call: call.before is Candidate and not isinstance(call.args[1], Leader),
                lambda me, role: type(me.state.role),
            ),
        ),
    ),
    "raft.leader_lost": Mark("a voter lost its leader", (said("quorum.leader_lost"),)),
    "raft.resigned_without_majority": Mark(
        "a leader that heard no majority resigned",
        (
            OnCall(
                _LEADER + "_hears_majority",
                lambda call: call.result is False,
            ),
        ),
    ),
    "raft.handed_over": Mark(
        "a leader resigned on purpose and told its successors",
        (OnCall("controller.raft.epoch_announcements:EpochAnnouncements._on_leader_resigned"),),
    ),
    "raft.leader_restarted": Mark(
        "a leader came back in its own epoch, as resigned",
        (
            OnCall(
                "controller.raft.transitions:RoleTransitions.start",
                lambda call: call.before,
                lambda me, now: me.state.election.leader_id == me.state.node_id,
            ),
        ),
    ),
    "raft.commit_waits_for_own_epoch": Mark(
        "a majority had a record of an older epoch, and it was not committed yet",
        (OnCall(_LEADER + "maybe_advance_high_watermark", _majority_is_of_older_epochs),),
    ),
    "raft.log_truncated": Mark("a voter cut what its new leader does not have", (said("quorum.log_truncated"),)),
    "raft.decisions_refused": Mark(
        "a deposed controller refused what it could not commit",
        (said("controller.resigned", lambda fields: fields.get("refused", 0) > 0),),
    ),
    "raft.voter_recovered": Mark("a controller that started with an empty disk has its vote", (said("quorum.voter_recovered"),)),
    "raft.late_fetch_refused": Mark(
        "a voter's fetch came from an earlier connection than its newest",
        (
            OnCall(
                "controller.raft.leader_fetches:LeaderFetches.on_fetch_request",
                lambda call: call.before,
                lambda me, request, ticket, session, now: (
                    isinstance(me.state.role, Leader)
                    and request.replica_id in me.state.role.voters
                    and session < me.state.role.voters[request.replica_id].session
                ),
            ),
        ),
        RARE,
    ),
    "raft.snapshot_written": Mark("a controller wrote a snapshot", (said("quorum.snapshot_written"),)),
    "raft.snapshot_installed": Mark("a controller installed its leader's snapshot", (said("quorum.snapshot_installed"),)),
    "raft.log_cleaned": Mark(
        "the metadata log was cut behind a snapshot",
        (
            OnCall(
                "controller.raft.metadata_log:MetadataLog.clean",
                lambda call: call.before < call.me.start_offset,
                lambda me, now_ms: me.start_offset,
            ),
        ),
    ),
    # Metadata, at the brokers
    "metadata.controller_changed": Mark("a broker found another active controller", (said("metadata.controller_changed"),)),
    "metadata.snapshot_loaded": Mark(
        "a broker began with a snapshot", (OnCall("broker.process.quorum_observer:QuorumObserver._install"),)
    ),
    "metadata.uncommitted_dropped": Mark(
        "a broker dropped fetched metadata that was never committed",
        (OnCall("broker.process.quorum_observer:QuorumObserver._truncate"),),
    ),
    # Clients
    "producer.retried": Mark("a batch was sent again", (_returned(_QUEUE + "on_failed", True),)),
    "producer.recovered": Mark(
        "after a failure all batches in flight were sent again, in order",
        (OnCall(_QUEUE + "_recovered", lambda call: call.result and call.me.in_flight),),
    ),
    "producer.epoch_bumped": Mark("a partition's producer epoch was bumped", (OnCall(_QUEUE + "_bump_epoch"),)),
    "producer.left_deposed_leader": Mark(
        "batches left a leader that had not answered for the one that leads now", (OnCall(_QUEUE + "abandon_attempts"),)
    ),
    "producer.gave_up": Mark("a batch was not delivered in time", (said("producer.delivery_failed"),)),
    "client.leader_learned": Mark(
        "a client learned of the new leader from the old one's refusal",
        (_returned("client.cluster.metadata:MetadataCache.update_leader", True),),
    ),
    "client.broker_suspected": Mark(
        "a request was overdue, and others were asked who leads", (OnCall(_CLUSTER + "Cluster.suspect"),)
    ),
    "client.stale_picture": Mark(
        "a broker that knows no controller answered with an old picture",
        (_returned(_CLUSTER + "follows_controller", False),),
    ),
    "consumer.position_checked": Mark(
        "after a change of leader a consumer asked whether its position is still true",
        (OnCall("client.consumer.offset_fetcher:OffsetFetcher._on_end_offset"),),
    ),
    "consumer.truncated": Mark(
        "a consumer was told that what it had read is gone",
        (OnCall("client.consumer.offset_fetcher:truncated"), OnCall("client.consumer.fetcher:truncated")),
        RARE,
    ),
    "consumer.out_of_range": Mark("a consumer's position was outside the log", (said("consumer.position_reset"),), SCENARIO),
    "consumer.session_lost": Mark(
        "a consumer had to open its session anew", (_returned("client.consumer.fetch_session:FetchSession.on_response", False),)
    ),
}
"""In the order of the report."""

WAITING: dict[str, str] = {
    "election.elr": "eligible leader replicas (KIP-966)",
    "elr.member_added": "eligible leader replicas (KIP-966)",
    "elr.member_lost_by_unclean_shutdown": "eligible leader replicas (KIP-966)",
    "election.unclean": "unclean leader election",
    "partition.recovering": "unclean leader election",
    "reassignment.completed": "reassignment",
    "reassignment.cancelled": "reassignment",
    "fetch.redirected_to_follower": "preferred read replica (KIP-392)",
    "log.records_deleted": "DeleteRecords",
    "log.compacted": "compaction",
    "log.compaction_swap_recovered": "compaction",
    "group.rebalanced": "consumer groups",
    "group.member_fenced": "consumer groups",
    "group.coordinator_moved": "consumer groups",
    "group.generation_refused": "consumer groups",
    "transaction.committed": "transactions",
    "transaction.aborted": "transactions",
    "transaction.fenced": "transactions",
}
"""Mark -> the feature that it waits for."""
