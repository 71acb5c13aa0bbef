"""Coverage marks: a name for each event that simulations must go through, and how often it happened in a run.

A sweep that never saw a diverging truncation has not tested one, however many seeds it ran. So a sweep in which a mark stays at
zero fails: the nemesis is too weak, too strong, or aims elsewhere. A sweep of some hundred seeds must see an event that happens
in one seed of fifty; a sweep of thousands, one that happens in one seed of three hundred. Most marks are log lines of the
product. The others are observed from outside, by wrapping a function while the simulation runs (`watching.py`).

    with Marks().watching(world.trace) as marks:
        world.run(story)
    report.marks = marks.counts
    ...
    missing(total(report.marks for report in reports))      # must be empty
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from errno import EDQUOT, EIO, ENOSPC
from typing import Any, Self

from strandline.broker.partition.partition import Role
from strandline.broker.partition.partition_state import PendingExpandIsr, PendingShrinkIsr
from strandline.broker.produce.produce_handler import DelayedProduce
from strandline.controller.cluster_control import BrokerControlState
from strandline.controller.metadata.records import NO_LEADER
from strandline.controller.raft.roles import Candidate, Leader
from strandline.protocol.errors import ErrorCode
from strandline.testing.simulation.observation.group_marks import GROUP_MARKS
from strandline.testing.simulation.observation.mark import RARE, SCENARIO, SWEEP, Mark
from strandline.testing.simulation.observation.mark import refused as _refused
from strandline.testing.simulation.observation.watching import Called, OnCall, OnEvent, Watch, said

__all__ = ["MARKS", "RARE", "SCENARIO", "SWEEP", "Mark", "Marks", "missing", "total"]

C = ErrorCode


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
    """The names of the marks that were never counted. `reach`: only marks of this reach (SWEEP, RARE or SCENARIO); None: all
    marks."""
    return [name for name, mark in MARKS.items() if not counts.get(name) and reach in (None, mark.reach)]


def total(reports: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The sum of the counts of many runs, in the order of the table."""
    counts = dict.fromkeys(MARKS, 0)
    for report in reports:
        for name, count in report.items():
            counts[name] = counts.get(name, 0) + count
    return counts


# -- how to see them --------------------------------------------------------------------------------------------------


def _returned(target: str, value: object) -> OnCall:
    return OnCall(target, lambda call: call.result is value)


def _field(name: str, *values: object) -> Callable[[Mapping[str, Any]], bool]:
    return lambda fields: fields.get(name) in values


def _begins(name: str, text: str) -> Callable[[Mapping[str, Any]], bool]:
    return lambda fields: str(fields.get(name)).startswith(text)


def _elects(call: Called) -> bool:
    """One of the returned records names a leader."""
    return any(getattr(record, "leader", -1) >= 0 for record in call.result)


def _elr(call: Called) -> tuple[int, ...]:
    """The ELR in the record that this call of `change_partition` returned."""
    return call.result.eligible_leader_replicas or ()


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


def _held_by(kind: type[Any], brokers_of: Callable[[Any], Iterable[int]]) -> Callable[[Called], bool]:
    """The high watermark waits for the members that a pending proposal adds or removes."""

    def when(call: Called) -> bool:
        leader_state, isr = call.me, call.me.isr
        if not isinstance(isr, kind):
            return False
        concerned = tuple(brokers_of(isr))
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
    if plan.generation != fetcher.generation:
        return False
    return not all(fetcher.awaits(plan, (answer.topic_id, answer.partition)) for answer in response.partitions)


def _returned_to_leader(partition: Any, registration: Any) -> bool:
    """A follower of this leader is about to follow it again in a later epoch, and was not notified of the leader in between."""
    is_same = registration.leader == partition.leader_id >= 0
    return is_same and registration.leader_epoch > partition.leader_epoch + 1 and partition.role is Role.FOLLOWER


def _fetch_error(*codes: int) -> OnCall:
    return OnCall(_FETCH + "Fetch.add_error", lambda call: call.args[2] in codes)


def _produce_error(*codes: int) -> OnCall:
    return OnCall(_PRODUCE + "ProduceHandler.refuse", lambda call: call.args[3].code in codes)


def _disk_error(when: Callable[[str, int], bool]) -> OnCall:
    return OnCall("storage.disk:DiskError.__init__", lambda call: when(call.args[1], call.args[3]))


def _all_succeeded(call: Called) -> bool:
    return not any(response.error_code for response in call.me.responses)


_PRODUCE = "broker.produce.produce_handler:"
_FETCH = "broker.fetch.fetch_handler:"
_LEADERSHIP = "broker.partition.leader_state:LeaderState."
_SESSIONS = "broker.fetch.fetch_session:FetchSessionCache."
_ELECTIONS = "controller.raft.election_handler:ElectionHandler."
_LEADER = "controller.raft.leader_handler:LeaderHandler."
_QUEUE = "client.producer.partition_queue:PartitionQueue."

# -- the table --------------------------------------------------------------------------------------------------------

MARKS: dict[str, Mark] = {
    # The nemesis
    "node.crashed": Mark("a process was killed; its page cache survived", (OnEvent("node.crashed", _field("lossy", False)),)),
    "node.crashed_lossy": Mark("a machine lost its power", (OnEvent("node.crashed", _field("lossy", True)),)),
    "node.paused": Mark("a process was paused", (OnEvent("node.paused"),)),
    # Elections
    "election.fencing": Mark(
        "a leader was elected because the previous leader was fenced",
        (OnCall("controller.controller:fence_broker", _elects), OnCall("controller.cluster_control:fence_broker", _elects)),
    ),
    "election.controlled_shutdown": Mark(
        "a leader was elected because the previous leader requested a controlled shutdown",
        (
            OnCall(
                "controller.cluster_control:transition",
                lambda call: call.args[3] is BrokerControlState.CONTROLLED_SHUTDOWN and _elects(call),
            ),
        ),
    ),
    "election.preferred": Mark(
        "the preferred replica was elected leader",
        (OnCall("controller.replication_control:elect_preferred", lambda call: call.result[0] == C.NONE),),
    ),
    "election.leaders_returned": Mark(
        "leaders returned to their preferred replica by themselves",
        (OnCall("controller.leader_balancer:move_leaders_back", lambda call: call.result.reply > 0),),
    ),
    "election.none_eligible": Mark(
        "the last member of an ISR died, so the partition has no leader",
        (
            OnCall(
                "controller.replication_control:change_partition",
                lambda call: call.result is not None and call.result.leader == NO_LEADER,
            ),
        ),
    ),
    "election.last_member_returned": Mark(
        "a replica returned to a partition without a leader, and became its leader",
        (OnCall("controller.cluster_control:elect_leaderless", _elects),),
    ),
    "election.elr": Mark(
        "an eligible leader replica was elected, because the ISR was empty",
        (
            OnCall(
                "controller.replication_control:change_partition",
                lambda call: call.result is not None and call.result.leader in call.args[1].elr,
            ),
        ),
    ),
    "election.unclean": Mark(
        "a replica that may lack committed records was elected, because no other one was left",
        (said("partition.elected_uncleanly"),),
        RARE,
    ),
    "partition.recovering": Mark(
        "a leader that was elected uncleanly proposed that its recovery has ended",
        (
            OnCall(
                _LEADERSHIP + "maybe_finish_recovery",
                lambda call: call.before,
                lambda me: me.is_recovering and not me.isr.is_in_flight,
            ),
        ),
        RARE,
    ),
    "reassignment.completed": Mark("a reassignment was completed", (said("reassignment.completed"),), SCENARIO),
    "reassignment.cancelled": Mark("a reassignment was cancelled", (said("reassignment.cancelled"),), SCENARIO),
    "elr.member_added": Mark(
        "a replica left the ISR and became an eligible leader replica",
        (
            OnCall(
                "controller.replication_control:change_partition",
                lambda call: bool(call.result is not None and set(_elr(call)) - set(call.args[1].elr)),
            ),
        ),
    ),
    "elr.cleared": Mark(
        "the ISR reached the min ISR, and the ELR became empty",
        (
            OnCall(
                "controller.replication_control:change_partition",
                lambda call: call.result is not None and call.result.eligible_leader_replicas == () and bool(call.args[1].elr),
            ),
        ),
    ),
    "elr.member_lost_by_unclean_shutdown": Mark(
        "an eligible leader replica had lost records, and was struck from the ELR",
        (
            OnCall(
                "controller.replication_control:change_partition",
                lambda call: len(call.args) > 4 and bool(set(call.args[4]) & set(call.args[1].elr)),
            ),
        ),
    ),
    # The level of the metadata
    "metadata.upgraded": Mark(
        "the level of the metadata was raised",
        (OnCall("controller.feature_upgrade:update_features", lambda call: bool(call.result.records)),),
    ),
    "metadata.upgrade_refused": Mark(
        "the level of the metadata was not raised, because a node did not answer",
        (
            OnCall(
                "controller.feature_upgrade:update_features",
                lambda call: any(r.error_code == C.FEATURE_UPDATE_FAILED for r in call.result.reply.results),
            ),
        ),
    ),
    # Brokers, as the controller sees them
    "broker.registered": Mark("a broker process registered and got a broker epoch", (said("broker.registered"),)),
    "broker.registered_again": Mark(
        "the same process registered again and kept its broker epoch",
        (OnCall("controller.cluster_control:register_again"),),
    ),
    "broker.duplicate_refused": Mark(
        "a second process with the id of a live broker was rejected",
        (_refused("controller.cluster_control:check_registration", C.DUPLICATE_BROKER_REGISTRATION),),
    ),
    "broker.cluster_id_refused": Mark(
        "a broker of another cluster was rejected",
        (_refused("controller.cluster_control:check_registration", C.INCONSISTENT_CLUSTER_ID),),
        RARE,
    ),
    "broker.epoch_stale": Mark(
        "the controller rejected a request from a broker's earlier process",
        (
            _refused("controller.replication_control:check_broker_epoch", C.STALE_BROKER_EPOCH),
            _refused("controller.cluster_control:check_broker_epoch", C.STALE_BROKER_EPOCH),
        ),
        RARE,
    ),
    "broker.unfenced": Mark("a broker was unfenced, so it may lead and join ISRs", (said("broker.unfenced"),)),
    "broker.fenced_by_session": Mark(
        "a broker was fenced because its session timed out", (said("broker.fencing", _begins("reason", "its session")),)
    ),
    "broker.fenced_by_probe": Mark(
        "a broker was fenced because it had no connection to the controller and no process answered at its address",
        (said("broker.fencing", _begins("reason", "it has no connection")),),
    ),
    "broker.fenced_while_alive": Mark("a running broker applied its own fencing", (said("broker.fenced"),)),
    "broker.shutdown_granted": Mark("the controller granted a controlled shutdown", (said("broker.shutdown_granted"),)),
    "broker.pause_detected": Mark(
        "a broker detected that it had been paused, and accepted no records until a controller answered",
        (said("broker.pause_detected"),),
    ),
    "broker.produce_refused_after_pause": Mark(
        "a broker that had just been paused rejected a produce request", (OnCall("broker.process.pause_detector:refuse_produce"),)
    ),
    # ISR
    "isr.expanded": Mark(
        "a replica joined the ISR",
        (
            OnCall(
                _LEADERSHIP + "install_isr",
                lambda call: bool(_change_of_isr(call)[1] - _change_of_isr(call)[0]),
                lambda me, isr, elr: me.isr.isr,
            ),
        ),
    ),
    "isr.shrunk": Mark(
        "a replica left the ISR",
        (
            OnCall(
                _LEADERSHIP + "install_isr",
                lambda call: bool(_change_of_isr(call)[0] - _change_of_isr(call)[1]),
                lambda me, isr, elr: me.isr.isr,
            ),
        ),
    ),
    "isr.changed_by_controller": Mark(
        "the controller changed the ISR, not the leader", (said("isr.committed", _begins("reason", "the controller")),)
    ),
    "isr.member_lagged": Mark("a follower lagged too long to stay in the ISR", (said("isr.member_lagged"),)),
    "isr.member_lost_records": Mark(
        "a member of the ISR fetched from below the high watermark: it had lost records", (said("isr.member_lost_records"),), RARE
    ),
    "isr.waits_for_epoch_start": Mark(
        "a follower had reached the high watermark, but not the start of the leader's epoch",
        (OnCall(_LEADERSHIP + "is_in_sync", _waits_for_epoch_start),),
    ),
    "isr.refused_ineligible": Mark(
        "the controller rejected an ISR with a member that is fenced, shutting down, or an earlier process",
        (said("isr.refused", _field("error", "INELIGIBLE_REPLICA")),),
    ),
    "isr.refused_stale": Mark(
        "the controller rejected a proposal that was based on an older state",
        (said("isr.refused", _field("error", "INVALID_UPDATE_VERSION", "FENCED_LEADER_EPOCH", "NEW_LEADER_ELECTED")),),
    ),
    "isr.stale_answer_ignored": Mark(
        "the leader ignored the response to a proposal because it had newer metadata",
        (
            said("isr.stale_answer_ignored"),
            OnCall(
                "broker.partition.alter_partition:AlterPartitionQueue.on_response",
                lambda call: call.before,
                lambda me, response: me.superseded,
            ),
        ),
    ),
    "isr.proposal_retried": Mark(
        "the controller returned a retriable error for a proposal, and the leader sent it again",
        (said("alter_partition.retried"),),
    ),
    "isr.answer_lost": Mark(
        "the response to a proposal was lost and the leader sent it again, so two copies were in flight",
        (
            OnCall(
                "broker.partition.alter_partition:AlterPartitionQueue.on_lost",
                lambda call: call.me.doubtful,
            ),
        ),
    ),
    # High watermark
    "hw.waits_for_min_isr": Mark(
        "the high watermark did not advance because the ISR was smaller than min.insync.replicas",
        (OnCall(_LEADERSHIP + "maybe_increment_high_watermark", _high_watermark_waits),),
    ),
    "hw.waits_for_candidate": Mark(
        "the high watermark waited for a follower that is about to join the ISR",
        (OnCall(_LEADERSHIP + "smallest_log_end", _held_by_candidate),),
    ),
    "hw.waits_for_added": Mark(
        "the high watermark waited for a member whose addition to the ISR was in flight",
        (OnCall(_LEADERSHIP + "smallest_log_end", _held_by(PendingExpandIsr, lambda isr: (isr.added,))),),
    ),
    "hw.waits_for_removed": Mark(
        "the high watermark waited for a member whose removal from the ISR was in flight",
        (OnCall(_LEADERSHIP + "smallest_log_end", _held_by(PendingShrinkIsr, lambda isr: isr.removed)),),
    ),
    "hw.unknown_to_new_leader": Mark(
        "a new leader's high watermark was below the start of its epoch",
        (OnCall("broker.partition.partition:Partition.make_leader", _hw_lags_behind_epoch),),
    ),
    "hw.latest_not_available": Mark(
        "a client asked a new leader for the latest offset before the leader knew its high watermark",
        (_refused("broker.fetch.offsets_handler:find_offset", C.OFFSET_NOT_AVAILABLE),),
    ),
    # Produce
    "produce.parked": Mark(
        "a produce request with acks=all waited for the high watermark",
        (OnCall("broker.purgatory:Purgatory.park", lambda call: isinstance(call.args[1], DelayedProduce)),),
    ),
    "produce.acked": Mark(
        "a waiting produce request was acknowledged because the high watermark had passed it",
        (OnCall(_PRODUCE + "DelayedProduce.on_complete", _all_succeeded),),
    ),
    "produce.timed_out": Mark("a waiting produce request timed out", (OnCall(_PRODUCE + "DelayedProduce.on_expiration"),)),
    "produce.not_enough_replicas": Mark(
        "a produce request was rejected because the ISR was smaller than min.insync.replicas",
        (_produce_error(C.NOT_ENOUGH_REPLICAS),),
    ),
    "produce.not_enough_after_append": Mark(
        "the ISR became smaller than min.insync.replicas while a produce request waited",
        (
            OnCall(
                _PRODUCE + "DelayedProduce.on_failed",
                lambda call: call.args[2] == C.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
            ),
        ),
    ),
    "produce.lost_leader": Mark(
        "the leadership ended while a produce request waited",
        (OnCall(_PRODUCE + "DelayedProduce.on_failed", lambda call: call.args[2] == C.NOT_LEADER_OR_FOLLOWER),),
    ),
    "produce.not_leader": Mark(
        "a broker that is not the leader rejected a produce request", (_produce_error(C.NOT_LEADER_OR_FOLLOWER),)
    ),
    "produce.duplicate": Mark(
        "a duplicate batch was answered with its original offsets",
        (OnCall("storage.log.log:Log.append_as_leader", lambda call: call.result.duplicate),),
    ),
    "produce.out_of_order": Mark(
        "a batch was rejected because an earlier batch of its producer was missing",
        (_produce_error(C.OUT_OF_ORDER_SEQUENCE_NUMBER),),
    ),
    "produce.old_producer_epoch": Mark(
        "a delayed copy of a batch with an older producer epoch was rejected",
        (_produce_error(C.INVALID_PRODUCER_EPOCH),),
        SCENARIO,
    ),
    # Fetch, at the leader
    "fetch.session_opened": Mark(
        "a fetch session was created", (OnCall(_SESSIONS + "full_fetch", lambda call: call.result.id > 0),)
    ),
    "fetch.session_continued": Mark("an incremental fetch continued a session", (OnCall(_SESSIONS + "incremental_fetch"),)),
    "fetch.session_evicted": Mark("a full cache evicted a fetch session", (_returned(_SESSIONS + "try_evict", True),)),
    "fetch.session_unknown": Mark(
        "a fetch named a session that does not exist", (_refused(_SESSIONS + "incremental_fetch", C.FETCH_SESSION_ID_NOT_FOUND),)
    ),
    "fetch.session_epoch_wrong": Mark(
        "a fetch had a wrong session epoch", (_refused(_SESSIONS + "incremental_fetch", C.INVALID_FETCH_SESSION_EPOCH),), RARE
    ),
    "fetch.woken": Mark(
        "a waiting fetch was answered because records were appended",
        (
            OnCall(
                _FETCH + "Fetch.try_complete",
                lambda call: not call.before and call.me.is_completed,
                lambda me: me.is_completed,
            ),
        ),
    ),
    "fetch.expired": Mark(
        "a waiting fetch was answered because its maximum wait was over", (OnCall(_FETCH + "Fetch.on_expiration"),)
    ),
    "fetch.epoch_fenced": Mark("a fetch had an older leader epoch than the leader", (_fetch_error(C.FENCED_LEADER_EPOCH),)),
    "fetch.epoch_unknown": Mark("a fetch had a newer leader epoch than the leader", (_fetch_error(C.UNKNOWN_LEADER_EPOCH),)),
    "fetch.of_earlier_leadership": Mark(
        "a follower fetched with the epoch of an earlier leadership of the same leader",
        (
            OnCall(
                "broker.partition.partition:Partition.leading_follower",
                lambda call: call.code == C.FENCED_LEADER_EPOCH and call.me.leader_state is not None,
                raised=True,
            ),
        ),
    ),
    "fetch.not_leader": Mark(
        "a fetch was rejected by a broker that is not the leader", (_fetch_error(C.NOT_LEADER_OR_FOLLOWER),)
    ),
    "fetch.out_of_range": Mark("a fetch offset was not in the log", (_fetch_error(C.OFFSET_OUT_OF_RANGE),)),
    "fetch.diverging": Mark(
        "the history of a fetching follower or consumer diverged from the leader's",
        (OnCall("broker.partition.partition:Partition.divergence", lambda call: call.result is not None),),
    ),
    "fetch.old_incarnation": Mark(
        "a fetch was from an earlier process of its broker",
        (_refused(_LEADERSHIP + "on_follower_fetch", C.NOT_LEADER_OR_FOLLOWER),),
        RARE,
    ),
    "fetch.nominated": Mark(
        "a leader sent a consumer to a replica in its rack", (_returned(_FETCH + "Fetch.maybe_nominate", True),)
    ),
    "fetch.from_follower": Mark(
        "a follower served a consumer",
        (OnCall(_FETCH + "Fetch.visit_for_consumer", lambda call: call.args[2].leader_state is None),),
    ),
    "fetch.readers_reported": Mark(
        "a follower reported to its leader that it has readers",
        (_returned("broker.replication.fetcher:FetcherCore.on_reader", True),),
    ),
    "fetch.ahead_of_hw": Mark(
        "a consumer fetched from above this replica's high watermark, and waited",
        (
            OnCall(
                _FETCH + "Fetch.visit_for_consumer",
                lambda call: call.args[1].fetch_offset > call.args[2].log.high_watermark,
            ),
        ),
    ),
    "purgatory.completed_before": Mark(
        "a waiting request was completed a second time, which had no effect",
        (_returned("broker.purgatory:DelayedOperation.complete", False),),
        SCENARIO,
    ),
    # Followers
    "follower.truncated": Mark(
        "a follower truncated a diverging tail", (said("partition.truncated", _field("reason", "diverging epoch")),)
    ),
    # If the leader's log ends below the follower's, the response contains the diverging epoch. OFFSET_OUT_OF_RANGE remains for a
    # follower that has restarted at a later log start and has fetched nothing since.
    "follower.truncated_to_leader_end": Mark(
        "a follower truncated its log to the end of its leader's shorter log",
        (said("partition.truncated", _begins("reason", "the leader's log")),),
        SCENARIO,
    ),
    "follower.truncated_epochs_only": Mark(
        "a truncation removed no record, only epochs without records",
        (
            OnCall(
                "storage.log.truncation:truncate_to",
                lambda call: call.result is False and len(call.me.epochs.entries) < call.before,
                lambda log, offset: len(log.epochs.entries),
            ),
        ),
    ),
    "follower.truncated_below_hw": Mark(
        "a replica that may have lost records truncated below its own high watermark",
        (said("partition.truncated_below_hw"),),
        RARE,
    ),
    "follower.restarted": Mark(
        "a follower deleted its log and started over at its leader's log start", (said("partition.restarted"),), RARE
    ),
    "follower.fresh_copy": Mark(
        "a follower had missed tombstones that its leader has removed, and had to begin a fresh copy",
        (said("fetcher.fresh_copy_needed"),),
    ),
    "cleaner.replaced": Mark("a cleaner put a rewritten segment in the place of others", (said("log.segments_replaced"),)),
    "cleaner.aborted": Mark(
        "a round of the cleaner ended early, because the log had changed or the broker stopped",
        (said("log_cleaner.aborted"),),
        RARE,
    ),
    "cleaner.disk_full": Mark("the disk was full while a log was cleaned", (said("log_cleaner.disk_full"),), SCENARIO),
    "cleaner.replacement_finished": Mark(
        "a start finished the replacement of segments that a crash had interrupted", (said("log.replacement_finished"),), RARE
    ),
    "follower.stale_response": Mark(
        "a fetch response was for a position that the follower no longer had",
        (_returned("broker.partition.partition:Partition.append_fetched", False),),
        RARE,
    ),
    "follower.late_response": Mark(
        "a fetch response held a partition that the follower had dropped, or fetched again, since the request",
        (OnCall("broker.replication.fetcher:FetcherCore.on_response", lambda call: call.before, _is_late),),
    ),
    "follower.leader_returned": Mark(
        "another broker led in between, but the follower applied only the later epoch of its own leader",
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
        "a response held records of a newer epoch than the request named", (said("partition.newer_epoch_ignored"),), SCENARIO
    ),
    "follower.fenced": Mark("a follower had older metadata than its leader", (said("fetcher.fenced"),)),
    "follower.session_lost": Mark("a follower had to open a new fetch session", (said("fetcher.session_lost"),)),
    "follower.connection_lost": Mark("a follower lost the connection to its leader", (said("fetcher.connection_lost"),)),
    "follower.repaired": Mark(
        "a follower truncated its damaged tail and fetched it again", (said("partition.damaged_tail_dropped"),)
    ),
    # The disk, and logs
    "disk.full": Mark(
        "a write failed because the disk was full", (_disk_error(lambda operation, errno: errno in (ENOSPC, EDQUOT)),)
    ),
    "disk.read_failed": Mark(
        "a sector could not be read", (_disk_error(lambda operation, errno: operation == "read" and errno == EIO),)
    ),
    "disk.write_failed": Mark("a write failed", (_disk_error(lambda operation, errno: operation == "write" and errno == EIO),)),
    "disk.fsync_failed": Mark("an fsync failed", (_disk_error(lambda operation, errno: operation == "fsync"),)),
    "log_dir.offline": Mark("a broker took its log directory offline", (said("log_dir.offline"),)),
    "log_dir.checkpoint_damaged": Mark("a broker ignored a damaged checkpoint", (said("log_dir.checkpoint_damaged"),), RARE),
    "log.rolled": Mark(
        "a log rolled a new segment",
        (OnCall("storage.log.log:Log.roll", lambda call: call.before, lambda log, *_: log.segments[-1].size),),
    ),
    "log.segments_deleted": Mark("retention deleted segments", (said("log.segments_deleted"),)),
    "log.records_deleted": Mark("a leader deleted records on request", (said("partition.records_deleted"),)),
    "log.start_moved": Mark(
        "a log's start advanced without a truncation",
        (OnCall("storage.log.log:Log.increment_log_start_offset", lambda call: call.result),),
    ),
    "log.damaged": Mark("a batch had a wrong checksum", (said("log.damaged"),)),
    "log.tail_cut": Mark("recovery truncated a torn tail", (said("log.tail_cut_in_recovery"),)),
    "log.checkpoint_clamped": Mark(
        "the disk had lost records that a checkpoint covers",
        (
            OnCall(
                "storage.log.recovery:apply_checkpoints",
                before=lambda log, *_: max(log.high_watermark, log.recovery_point) > log.log_end_offset,
                when=lambda call: call.before,
            ),
        ),
    ),
    "log.index_rebuilt": Mark(
        "an index that did not match its segment was rebuilt",
        (OnCall("storage.log.segment:Segment.rebuild_indexes", lambda call: call.me.size),),
    ),
    "log.epochs_found_again": Mark(
        "all leader epochs were rebuilt from the batches",
        (
            OnCall(
                "storage.log.recovery:load_epochs",
                lambda call: call.result is None and any(s.size for s in call.me.segments),
            ),
        ),
    ),
    "log.producers_replayed": Mark(
        "producer states were rebuilt from the batches",
        (OnCall("storage.log.producer_recovery:replay_producers", lambda call: len(call.me.producers)),),
    ),
    "logs.recovered_clean": Mark(
        "a broker started after a clean shutdown",
        (said("logs.recovered", lambda fields: bool(fields.get("clean"))),),
    ),
    "logs.recovered_unclean": Mark(
        "a broker recovered its logs after a crash", (said("logs.recovered", lambda fields: not fields.get("clean")),)
    ),
    "topic.deleted": Mark("a topic's logs were deleted", (said("partition.deleted"),)),
    "log.stray": Mark(
        "a broker restarted with the log of a deleted topic", (said("logs.stray_found"), said("log_dir.log_set_aside"))
    ),
    # The quorum
    "raft.pre_vote_refused": Mark(
        "a voter whose leader is alive rejected a pre-vote", (_returned(_ELECTIONS + "would_vote", False),)
    ),
    "raft.pre_vote_lost": Mark("a voter lost a round of pre-votes", (OnCall(_ELECTIONS + "lose_pre_vote"),)),
    "raft.vote_granted": Mark("a voter granted its vote", (_returned(_ELECTIONS + "may_vote", True),)),
    "raft.second_vote_refused": Mark(
        "a voter rejected a vote request because it had voted for another candidate in this epoch",
        (
            OnCall(
                _ELECTIONS + "may_vote",
                lambda call: call.result is False and call.me.state.election.voted_id not in (-1, call.args[1].replica_id),
            ),
        ),
    ),
    "raft.shorter_log_refused": Mark(
        "a voter rejected a vote request because the candidate's log was shorter than its own",
        (_returned(_ELECTIONS + "is_up_to_date", False),),
    ),
    "raft.became_leader": Mark("a controller became active", (said("quorum.became_leader"),)),
    "raft.election_lost": Mark(
        "a candidate did not become leader",
        (
            OnCall(
                "controller.raft.transitions:RoleTransitions.become",
                lambda call: call.before is Candidate and not isinstance(call.args[1], Leader),
                lambda me, role: type(me.state.role),
            ),
        ),
    ),
    "raft.leader_lost": Mark("a voter lost its leader", (said("quorum.leader_lost"),)),
    "raft.resigned_without_majority": Mark(
        "a quorum leader that did not hear from a majority resigned",
        (
            OnCall(
                _LEADER + "hears_majority",
                lambda call: call.result is False,
            ),
        ),
    ),
    "raft.handed_over": Mark(
        "a quorum leader resigned on purpose and notified its successors",
        (OnCall("controller.raft.epoch_announcements:EpochAnnouncements.on_leader_resigned"),),
    ),
    "raft.leader_restarted": Mark(
        "a quorum leader restarted in its own epoch, as resigned",
        (
            OnCall(
                "controller.raft.transitions:RoleTransitions.start",
                lambda call: call.before,
                lambda me, now: me.state.election.leader_id == me.state.node_id,
            ),
        ),
    ),
    "raft.commit_waits_for_own_epoch": Mark(
        "a majority had a record of an older epoch, but it was not committed yet",
        (OnCall(_LEADER + "maybe_advance_high_watermark", _majority_is_of_older_epochs),),
    ),
    "raft.log_truncated": Mark("a voter truncated records that its new leader does not have", (said("quorum.log_truncated"),)),
    "raft.decisions_refused": Mark(
        "a deposed controller failed the requests whose records it could not commit",
        (said("controller.resigned", lambda fields: fields.get("refused", 0) > 0),),
    ),
    "raft.voter_recovered": Mark(
        "a controller that started with an empty disk got its vote back", (said("quorum.voter_recovered"),)
    ),
    "raft.late_fetch_refused": Mark(
        "a fetch from a voter's older connection was rejected",
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
        "the metadata log was truncated at its start, up to a snapshot",
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
        "a broker started from a snapshot", (OnCall("broker.process.quorum_observer:QuorumObserver.install_snapshot"),)
    ),
    "metadata.uncommitted_dropped": Mark(
        "a broker dropped fetched metadata that was never committed",
        (OnCall("broker.process.quorum_observer:QuorumObserver.truncate"),),
    ),
    # Clients
    "producer.retried": Mark("a batch was sent again", (_returned(_QUEUE + "on_failed", True),)),
    "producer.recovered": Mark(
        "after a failure all batches in flight were sent again, in order",
        (OnCall(_QUEUE + "maybe_recover", lambda call: call.result and call.me.in_flight),),
    ),
    "producer.epoch_bumped": Mark("a producer bumped its epoch in a partition", (OnCall(_QUEUE + "bump_epoch"),)),
    "producer.left_deposed_leader": Mark(
        "a producer resent batches to the new leader because the deposed one had not answered",
        (OnCall(_QUEUE + "abandon_attempts"),),
    ),
    "producer.gave_up": Mark("a batch was not delivered within its timeout", (said("producer.delivery_failed"),)),
    "client.leader_learned": Mark(
        "a client got the new leader from the old leader's error response",
        (_returned("client.cluster.metadata:MetadataCache.update_leader", True),),
    ),
    "client.broker_suspected": Mark(
        "a request was overdue, so the client asked other brokers for the leader",
        (OnCall("client.cluster.cluster:Cluster.suspect"),),
    ),
    "client.stale_picture": Mark(
        "a broker that is cut off from the controllers answered with old metadata",
        (_returned("client.cluster.any_broker:follows_controller", False),),
    ),
    "consumer.position_checked": Mark(
        "after a change of leader, a consumer validated its position",
        (OnCall("client.consumer.offset_fetcher:OffsetFetcher.on_end_offset"),),
    ),
    "consumer.left_preferred_replica": Mark(
        "a consumer went back to the leader, because the replica in its rack refused or could not be reached",
        (OnCall("client.consumer.preferred_replicas:PreferredReplicas.fail"),),
    ),
    "consumer.truncated": Mark(
        "a consumer found that records it had read were truncated",
        (OnCall("client.consumer.offset_fetcher:truncated"), OnCall("client.consumer.fetcher:truncated")),
        RARE,
    ),
    "consumer.out_of_range": Mark("a consumer's position was outside the log", (said("consumer.position_reset"),), SCENARIO),
    "consumer.session_lost": Mark(
        "a consumer had to open a new fetch session",
        (_returned("client.consumer.fetch_session:FetchSession.on_response", False),),
    ),
    "security.denied": Mark("a request was refused because its sender lacked a right", (said("authorizer.denied"),)),
    "security.login_failed": Mark("a login failed", (said("connection.authentication_failed"),)),
    "security.login_again": Mark(
        "a connection logged in again before its session ended",
        (OnCall("protocol.rpc.connection:Connection.hold_back"),),
    ),
    "security.rights_changed": Mark("access rules were created or deleted", (said("acl.changed"),)),
    "security.password_changed": Mark("a password was changed", (said("user.credential_changed"),)),
    "security.throttled": Mark(
        "a client got a throttle time, because of a quota",
        (OnCall("client.cluster.throttle_times:ThrottleTimes.on_throttled"),),
    ),
    **GROUP_MARKS,
}
"""All marks, by name, in the order of the report."""
