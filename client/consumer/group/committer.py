"""Commits for a member of a group: the program's commits, and the automatic ones.

An automatic commit contains the finished offsets (handed_over.py) that are not committed yet. The first position of a partition
is committed, too: otherwise, with `auto_offset_reset="latest"`, the next owner would begin at a later log end, and skip the
records in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from strandline.client.cluster.coordinator import CoordinatorConnection
from strandline.client.consumer.group.assignment import Assignment
from strandline.client.consumer.group.commits import Commits, Membership, Sender
from strandline.client.consumer.group.handed_over import HandedOver
from strandline.client.consumer.group.heartbeats import Act, MemberView
from strandline.client.consumer.group.membership import Identity
from strandline.client.consumer.partition_state import PartitionState
from strandline.client.consumer.records import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition, TransactionMember
from strandline.client.consumer.subscription import Subscription
from strandline.client.errors import CommitFailed, UsageError
from strandline.client.options import ConsumerOptions
from strandline.protocol.errors import StrandlineError
from strandline.protocol.loggers import get_logger

logger = get_logger(__name__)


class Committer:
    """Commits for one consumer: as a member of the group, or without a membership if partitions are assigned by hand."""

    def __init__(
        self,
        options: ConsumerOptions,
        identity: Identity,
        coordinator: CoordinatorConnection,
        subscription: Subscription,
        assignment: Assignment,
        handed: HandedOver,
        view: Callable[[], MemberView],
        post: Callable[[Act], None],
    ) -> None:
        self._options = options
        self._identity = identity
        self._subscription = subscription
        self._assignment = assignment
        self._handed = handed
        self._view = view
        self._post = post
        self._loop = asyncio.get_running_loop()
        membership = Membership(self._sender, self._owns, self.lost_error, self._after_heartbeat)
        self.commits = Commits(options, identity.group_id, coordinator, membership)
        self._view_waiters: list[asyncio.Future[None]] = []
        self.last_gap_s: float | None = None
        """Seconds for which the program had not polled when it lost its partitions because of that; None once it got some
        again."""

    # -- the program's commits ----------------------------------------------------------------------------------------

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata] | None, deadline: float) -> None:
        """Store these offsets, or the positions of all assigned partitions (None). See `Commits.commit`. If partitions are
        assigned by hand, UsageError for one that is not assigned. After a partition was lost while the program had unfinished
        records of it, its commits fail until the program asks for more records, even if it was assigned again: another member may
        have read on."""
        states, dropped = self._subscription.states, self._handed.dropped
        if offsets is None:
            missing = list(dropped)
            wanted = {
                state: OffsetAndMetadata(state.position, "", state.position_epoch)
                for state in states.values()
                if state.position >= 0 and state.tp not in dropped
            }
        else:
            missing = [tp for tp in offsets if tp not in states or tp in dropped]
            wanted = {states[tp]: offset for tp, offset in offsets.items() if tp not in missing}
        if missing and self._is_without_group:
            raise UsageError(f"{missing[0]} is not assigned to this consumer")
        for state, offset in wanted.items():
            self._handed.on_committed(state, (offset.offset, offset.leader_epoch))
        await self.commits.commit(wanted, deadline)
        if missing:
            raise self.lost_error(None, missing[0])

    def transaction_member(self, offsets: Iterable[TopicPartition]) -> TransactionMember:
        """The membership with which a transaction commits these offsets now. CommitFailed for a partition that is not, or no
        longer, assigned to the consumer; UsageError instead if the consumer assigns partitions by hand."""
        states, dropped = self._subscription.states, self._handed.dropped
        missing = next((tp for tp in offsets if tp not in states or tp in dropped), None)
        if missing is not None and self._is_without_group:
            raise UsageError(f"{missing} is not assigned to this consumer")
        if missing is not None:
            raise self.lost_error(None, missing)
        return TransactionMember(self.metadata(), {tp: states[tp].topic_id for tp in offsets})

    def metadata(self) -> ConsumerGroupMetadata:
        """The membership with which the consumer commits now. CommitFailed if it is no member."""
        sender = self._sender()
        return ConsumerGroupMetadata(self._identity.group_id, sender.epoch, sender.member_id, sender.instance_id)

    # -- automatic commits --------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Commit every `auto_commit_interval_ms`, until cancelled."""
        while True:
            await asyncio.sleep(self._options.auto_commit_interval_ms / 1000)
            await self.commit_settled(self._loop.time() + self._options.request_timeout_ms / 1000)

    async def commit_settled(self, deadline: float) -> None:
        """Commit the finished offsets of all partitions, except those in transit, which the rebalance commits."""
        if self._is_without_group:
            states = list(self._subscription.states.values())
        else:
            settled = [key for key in self._assignment.announced if key not in self._assignment.in_transit]
            states = [self._assignment.states[key] for key in settled]
        await self.commit_finished(states, deadline)

    async def commit_finished(self, states: Iterable[PartitionState], deadline: float) -> None:
        """Commit the finished offsets of these states. A failure is logged and not raised: the records are read again later."""
        offsets = {}
        for state in states:
            finished, last = self._handed.finished(state), self.commits.last.get(state.key)
            if finished is not None and (last is None or last.offset != finished[0]):
                offsets[state] = OffsetAndMetadata(finished[0], "", finished[1])
        if not offsets:
            return
        try:
            await self.commits.commit(offsets, deadline)
        except StrandlineError as e:
            logger.warning("consumer.commit_failed", group_id=self._identity.group_id, reason=str(e))

    # -- the membership -----------------------------------------------------------------------------------------------

    def _sender(self) -> Sender:
        """The member id and epoch with which the consumer commits now. CommitFailed if it is no member."""
        if self._is_without_group:
            return Sender()
        view = self._view()
        if view.tenure != self._assignment.tenure or view.epoch <= 0:
            raise self.lost_error(None)
        return Sender(self._identity.member_id, view.epoch, self._identity.instance_id)

    @property
    def _is_without_group(self) -> bool:
        """Whether partitions are assigned by hand."""
        return not self._assignment and not self._subscription.by_group

    def _owns(self, state: PartitionState) -> bool:
        if self._is_without_group:
            return self._subscription.states.get(state.tp) is state
        return self._assignment.states.get(state.key) is state and self._view().tenure == self._assignment.tenure

    def lost_error(self, state: PartitionState | None, tp: TopicPartition | None = None) -> CommitFailed:
        """The error of a commit for a partition that is not assigned to the consumer, or (without a partition) of a consumer that
        is no member. Also requests a heartbeat at once, which shows whether the coordinator has removed the member."""
        self._post(lambda m, now: m.beat_now(now))
        what = f"the coordinator of group {self._identity.group_id!r} does not count this consumer as a member"
        tp = tp if state is None else state.tp
        if tp is not None:
            what = f"{tp} is not assigned to this consumer, or no longer"
        gap_s = self._view().poll_gap_s or self.last_gap_s
        if gap_s is not None:
            limit = self._options.max_poll_interval_ms
            is_run = self._handed.ledger is not None
            why = "a call of the handler had not returned" if is_run else "the program had not asked for records"
            what += f": {why} for {gap_s:.1f} s (max_poll_interval_ms={limit})"
        return CommitFailed(what, topic=None if tp is None else tp.topic, partition=None if tp is None else tp.partition)

    def on_view(self, view: MemberView) -> None:
        """Take the newest view, and wake the commits that wait for it."""
        if view.poll_gap_s is not None:
            self.last_gap_s = view.poll_gap_s
        waiters, self._view_waiters = self._view_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _after_heartbeat(self, deadline: float) -> None:
        """Wait until a heartbeat that was sent after this call has succeeded, the tenure has ended, or the time is up."""
        called_at, tenure = self._loop.time(), self._assignment.tenure
        self._post(lambda m, now: m.beat_now(now))
        while self._loop.time() < deadline:
            view = self._view()
            if view.tenure != tenure or (view.confirmed_at is not None and view.confirmed_at >= called_at):
                return
            waiter = self._loop.create_future()
            self._view_waiters.append(waiter)
            await asyncio.wait([waiter], timeout=max(0.0, deadline - self._loop.time()))
