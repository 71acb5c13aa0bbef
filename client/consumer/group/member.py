"""A consumer's membership in its group, as the consumer uses it: subscribes, reads, commits, stops.

`GroupMember` connects the parts: the heartbeats (behind a link, perhaps on a thread), the rebalancer, the committer. It decides
what a program sees: errors, health, changes of the state, and that no record is returned while the membership is in doubt.
"""

from __future__ import annotations

import asyncio
from base64 import urlsafe_b64encode
from collections.abc import Container, Coroutine, Iterable, Mapping
from typing import Any

from strandline.client.cluster.cluster import Cluster
from strandline.client.cluster.coordinator import CoordinatorConnection
from strandline.client.consumer.fetcher import Fetcher
from strandline.client.consumer.group.assignment import Assignment
from strandline.client.consumer.group.callbacks import Callbacks
from strandline.client.consumer.group.committer import Committer
from strandline.client.consumer.group.handed_over import HandedOver, Ledger
from strandline.client.consumer.group.heartbeat_thread import ThreadLink, may_use_threads
from strandline.client.consumer.group.heartbeats import Act, Heartbeats, MemberView, Progress
from strandline.client.consumer.group.link import Link, LocalLink, reason_of_end
from strandline.client.consumer.group.membership import Identity, MemberState, Topics
from strandline.client.consumer.group.rebalancer import LEAVE_S, Hooks, Rebalancer, Standing
from strandline.client.consumer.partition_state import PartitionState
from strandline.client.consumer.records import (
    ConsumerGroupMetadata,
    GroupStateChange,
    OffsetAndMetadata,
    TopicPartition,
    TransactionMember,
)
from strandline.client.consumer.subscription import Subscription
from strandline.client.errors import GroupMembershipFailed, RequestTimeout, copy_of
from strandline.client.options import ConsumerOptions
from strandline.protocol.doors import Doors, new_uuid
from strandline.protocol.loggers import get_logger
from strandline.protocol.partitions import TopicIdPartition

logger = get_logger(__name__)

STOP_SHARE = 0.7
"""Share of the time of `stop` that the last commit and `on_revoked` may take. In the rest, the member leaves the group."""
FAILED = MemberState.FAILED.value


class GroupMember:
    """The membership of one consumer. Belongs to the consumer's event loop."""

    def __init__(
        self,
        options: ConsumerOptions,
        group_id: str,
        doors: Doors,
        cluster: Cluster,
        subscription: Subscription,
        fetcher: Fetcher,
        hooks: Hooks,
    ) -> None:
        self._options = options
        self._random = doors.random
        self._cluster = cluster
        self._subscription = subscription
        self._fetcher = fetcher
        self._loop = asyncio.get_running_loop()
        self.identity = identity = Identity(
            group_id,
            urlsafe_b64encode(new_uuid(doors.random)).rstrip(b"=").decode(),
            options.group_instance_id,
            options.client_rack,
            options.group_remote_assignor,
            options.rebalance_timeout_ms or options.max_poll_interval_ms,
        )
        self._handed = handed = HandedOver()
        self._assignment = assignment = Assignment(subscription, fetcher, handed)
        self._coordinator = CoordinatorConnection(cluster, group_id, cluster.connections.state_at)
        standing = Standing(lambda: self.view, self._post, lambda: self._topics is not None, self._update_holds)
        self._committer = committer = Committer(
            options, identity, self._coordinator, subscription, assignment, handed, standing.view, standing.post
        )
        self._rebalancer = Rebalancer(
            options, identity, cluster, subscription, fetcher, assignment, committer, handed, standing, hooks
        )
        self._progress = Progress()
        self._topics: Topics | None = None
        """The program's subscription; None: it is not subscribed."""
        self._link: Link | None = None
        """The link to the heartbeats; None before the first subscription."""
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._rebalancing: asyncio.Task[None] | None = None
        """The one of `_tasks` that rebalances."""
        self._is_stopping = False
        self._is_suspended = False
        """The membership is in doubt, so no records are returned."""
        self._failure: GroupMembershipFailed | None = None
        """Why a background task has ended."""
        self._last_state = MemberState.UNSUBSCRIBED.value

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """The cluster was found: commit regularly from now on (with `enable_auto_commit`)."""
        if self._options.enable_auto_commit:
            self._spawn(self._committer.run(), "auto commit")

    def _spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = self._loop.create_task(coroutine, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._on_task_end)
        return task

    def _on_task_end(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if task is self._rebalancing:
            self._rebalancer.left.set()  # The task that would set it has ended.
        if not self._is_stopping:
            self._fail(f"the background task {task.get_name()!r} has ended: {reason_of_end(task)}")

    def _fail(self, reason: str) -> None:
        """The consumer can no longer be a member: leave the group, so that the coordinator does not wait until the session
        ends."""
        if self._failure is not None:
            return
        group_id, member_id = self.identity.group_id, self.identity.member_id
        self._failure = GroupMembershipFailed(f"the consumer cannot be a member of group {group_id!r}: {reason}")
        logger.error("consumer.membership_failed", group_id=group_id, member_id=member_id, reason=reason)
        self._topics = None
        self._update_holds()
        self._post(lambda m, now: m.leave(now, LEAVE_S))
        self._notify(FAILED, reason)
        self._fetcher.wake()

    async def stop(self, deadline: float, *, has_finished: bool) -> None:
        """Commit, give up all partitions, and leave the group, until the deadline (on the loop's clock). `has_finished`: the
        program has finished the records that it has got."""
        self._is_stopping = True
        now = self._loop.time()
        self._rebalancer.stop_until = now + STOP_SHARE * (deadline - now)
        self.unsubscribe(has_finished=has_finished)
        self._fetcher.wake()
        try:
            await self._leave_in_order(deadline)
        except TimeoutError:
            logger.warning("consumer.leave_timed_out", group_id=self.identity.group_id, member_id=self.identity.member_id)
        finally:
            for task in list(self._tasks):
                task.cancel()
            if self._link is not None:
                await self._link.close()
            if self._tasks:
                await asyncio.wait(list(self._tasks))

    async def _leave_in_order(self, deadline: float) -> None:
        """Wait until the consumer has left the group; TimeoutError at the deadline. If it has never joined, commit what is
        finished instead (with `enable_auto_commit`)."""
        if self._link is not None:
            async with asyncio.timeout_at(deadline):
                await self._rebalancer.left.wait()
        elif self._options.enable_auto_commit:
            await self._committer.commit_finished(self._subscription.states.values(), deadline)

    # -- the subscription ---------------------------------------------------------------------------------------------

    def subscribe(self, topics: Topics, callbacks: Callbacks) -> None:
        """Join the group with this subscription, or change the member's subscription. GroupMembershipFailed if a background task
        of the membership has ended."""
        if self._failure is not None:
            raise copy_of(self._failure)
        self._topics, self._rebalancer.callbacks = topics, callbacks
        self._rebalancer.left.clear()
        if self._link is None:
            self._link = self._make_link()
            self._rebalancing = self._spawn(self._rebalancer.run(), "rebalance")
        self._post(lambda m, now: m.subscribe(topics, now))
        self._update_holds()
        self._rebalancer.changed.set()

    def unsubscribe(self, *, has_finished: bool = True) -> None:
        """Return no more records, and leave the group in the background."""
        self._topics = None
        if has_finished:
            self._handed.finish_all()
        self._update_holds()
        self._rebalancer.changed.set()

    async def left(self, deadline: float) -> None:
        """Wait until the consumer has left the group. RequestTimeout at the deadline (on the loop's clock)."""
        try:
            await self._leave_in_order(deadline)
        except TimeoutError:
            raise RequestTimeout(f"the consumer has not left group {self.identity.group_id!r} in time") from None

    def _make_link(self) -> Link:
        options = self._options
        if options.heartbeat_thread and may_use_threads(self._loop):
            return ThreadLink(options, self.identity, self._random.getrandbits(64), self._progress, self._on_view)
        return LocalLink(
            lambda publish: Heartbeats(options, self.identity, self._cluster, self._random, self._progress, publish),
            self._on_view,
        )

    def _post(self, act: Act) -> None:
        if self._link is not None:
            self._link.post(act)

    @property
    def view(self) -> MemberView:
        """The newest state of the membership."""
        return MemberView() if self._link is None else self._link.view

    # -- calls that return records ------------------------------------------------------------------------------------

    def on_poll(self, only: Container[TopicPartition] | None) -> None:
        """The program asks for records (of these partitions, or of all)."""
        self._progress.polls += 1
        self._progress.iterated = None
        self._handed.on_poll(only)
        if self._assignment.in_transit:
            self._rebalancer.changed.set()  # A revocation may wait for this.
        view = self.view
        if view.state is MemberState.STALE:
            self._post(lambda m, now: m.on_poll(now))
        self._maybe_suspend()

    def _maybe_suspend(self) -> None:
        """Hold all partitions if the session may have ended. After the process was paused, this is the first check."""
        if self._assignment and not self._is_suspended and self._loop.time() >= self.view.valid_until:
            self._update_holds()

    def on_returned(self, state: PartitionState) -> None:
        """A call is about to return records of this state."""
        self._handed.on_returned(state)

    def on_iterated(self, state: PartitionState) -> None:
        """`async for` is about to return records of this state."""
        self._handed.on_iterated(state)
        self._progress.iterated = state

    def on_moved(self, state: PartitionState) -> None:
        """The program has chosen another position."""
        self._handed.forget(state)

    def raise_errors(self) -> None:
        """Raise the error because of which the consumer is no member (each time), or that of a callback (once)."""
        error = self._failure or self.view.error
        if error is not None:
            raise copy_of(error)
        failed, self._rebalancer.callback_error = self._rebalancer.callback_error, None
        if failed is not None:
            raise failed

    async def wait(self, deadline: float | None) -> bool:
        """Wait for records, as `Fetcher.wait` does. The time does not count towards `max_poll_interval_ms`."""
        self._progress.waiting += 1
        try:
            return await self._fetcher.wait(deadline)
        finally:
            self._progress.waiting -= 1
            self._progress.polls += 1
            self._maybe_suspend()

    # -- a handler that `Consumer.run` calls --------------------------------------------------------------------------

    def begin_run(self, ledger: Ledger) -> None:
        """From now on `ledger` decides which records are finished. All records that were returned before count as finished."""
        self._handed.finish_all()
        self._handed.ledger = ledger

    def end_run(self) -> None:
        """The run ends. It sets the positions back to its first unfinished records, so from now on the positions may be
        committed."""
        self._handed.ledger = self._progress.working_since = None
        self._rebalancer.changed.set()

    def on_working(self, since: float | None) -> None:
        """Note when the oldest running call of the handler began, on the loop's clock; None: no call runs."""
        self._progress.working_since = since

    def on_finished(self) -> None:
        """A call of the handler has ended. A revocation may wait for it."""
        if self._assignment.in_transit:
            self._rebalancer.changed.set()

    def forget_dropped(self, tp: TopicPartition) -> None:
        """The handler no longer works on records of a partition that was dropped, so commits for the partition may succeed
        again."""
        self._handed.dropped.pop(tp, None)

    def may_handle(self, state: PartitionState) -> bool:
        """Whether records of this state may be handled now."""
        self._maybe_suspend()
        return not state.is_held

    @property
    def is_in_doubt(self) -> bool:
        """Whether other members may have the partitions that were taken."""
        self._maybe_suspend()
        return self._is_in_doubt

    @property
    def is_expelled(self) -> bool:
        """Whether the consumer has left the group because the program did not poll in time. The next poll joins again."""
        return self.view.state is MemberState.STALE

    async def commit_finished(self, deadline: float) -> None:
        """Commit the offsets that the program has finished, if `enable_auto_commit` is set."""
        if self._options.enable_auto_commit:
            await self._committer.commit_settled(deadline)

    # -- what the coordinator says ------------------------------------------------------------------------------------

    def _on_view(self) -> None:
        link, view = self._link, self.view
        if link is not None and link.failure is not None:
            self._rebalancer.left.set()
            self._fail(f"the heartbeats have ended: {link.failure}")
        if view.state.value != self._last_state:
            is_trouble = view.state in (MemberState.FENCED, MemberState.JOINING)
            reason = view.error or (view.last_error if is_trouble else None)
            self._log_state(view)
            self._notify(view.state.value, None if reason is None else str(reason))
        self._update_holds()
        self._rebalancer.changed.set()
        self._committer.on_view(view)
        if view.error is not None:
            self._fetcher.wake()

    def _log_state(self, view: MemberView) -> None:
        group_id, member_id = self.identity.group_id, self.identity.member_id
        if self._last_state == MemberState.JOINING.value and view.target_keys is not None:
            logger.info("consumer.group_joined", group_id=group_id, member_id=member_id, member_epoch=view.epoch)
        elif view.state is MemberState.FENCED and view.last_error is not None:
            logger.warning("consumer.member_fenced", group_id=group_id, member_id=member_id, reason=str(view.last_error))
        elif view.state is MemberState.FAILED:
            logger.error("consumer.membership_failed", group_id=group_id, member_id=member_id, reason=str(view.error))
        elif view.state is MemberState.UNSUBSCRIBED:
            logger.info("consumer.group_left", group_id=group_id, member_id=member_id)

    def _notify(self, state: str, reason: str | None) -> None:
        previous, self._last_state = self._last_state, state
        callback = self._options.on_state_change
        if callback is None:
            return
        try:
            callback(GroupStateChange(previous, state, reason))
        except Exception as e:
            reason = f"{type(e).__name__}: {e}"
            logger.warning("consumer.callback_failed", group_id=self.identity.group_id, callback="on_state_change", reason=reason)

    def on_cluster(self) -> None:
        """Metadata was refreshed: it may have the names of assigned topics now."""
        if self.view.target_keys is not None and len(self.view.target_keys) != len(self._assignment.announced):
            self._rebalancer.changed.set()

    def _update_holds(self) -> None:
        """Hold the partitions whose records must not be returned now, and release the others."""
        view, is_present = self.view, self.view.tenure == self._assignment.tenure
        is_valid = is_present and self._loop.time() < view.valid_until
        if self._assignment and is_present and is_valid == self._is_suspended:
            self._log_validity(is_valid, view)
        self._is_suspended = not is_valid
        self._assignment.update_holds(is_valid, self._reads)
        self._handed.on_holds()

    def _reads(self, topic: str) -> bool:
        """Whether the program is subscribed to this topic. With a pattern every topic counts, because only the coordinator
        evaluates patterns."""
        topics = self._topics
        return topics is not None and (topics.pattern is not None or topic in topics.names)

    def _log_validity(self, is_valid: bool, view: MemberView) -> None:
        group_id, member_id = self.identity.group_id, self.identity.member_id
        if is_valid:
            logger.info("consumer.reading_resumed", group_id=group_id, member_id=member_id)
            return
        silent_ms = None if view.confirmed_at is None else round((self._loop.time() - view.confirmed_at) * 1000)
        reason = "no heartbeat has succeeded" if view.last_error is None else str(view.last_error)
        logger.warning("consumer.reading_suspended", group_id=group_id, member_id=member_id, silent_ms=silent_ms, reason=reason)

    # -- committed offsets --------------------------------------------------------------------------------------------

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata] | None, deadline: float) -> None:
        """See `Committer.commit`."""
        await self._committer.commit(offsets, deadline)

    def transaction_member(self, offsets: Iterable[TopicPartition]) -> TransactionMember:
        """See `Committer.transaction_member`."""
        return self._committer.transaction_member(offsets)

    def metadata(self) -> ConsumerGroupMetadata:
        """See `Committer.metadata`."""
        return self._committer.metadata()

    async def committed(
        self, keys: Mapping[TopicIdPartition, TopicPartition], deadline: float
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """The committed offsets of these partitions; partitions without one are left out. See `Commits.fetch`."""
        found = await self._committer.commits.fetch(keys, deadline, as_member=False)
        return {tp: found[key] for key, tp in keys.items() if key in found}

    async def begin_assigned(self, states: Iterable[PartitionState], deadline: float) -> None:
        """Set the positions of partitions that were assigned by hand to their committed offsets, or by the reset policy. Errors
        are those of `Commits.fetch`."""
        by_key = {state.key: state for state in states}
        committed = await self._committer.commits.fetch(by_key, deadline, as_member=False)
        for key, state in by_key.items():
            if self._subscription.by_key.get(key) is state:
                self._rebalancer.begin(state, committed.get(key))

    # -- what an operator sees ----------------------------------------------------------------------------------------

    @property
    def error(self) -> Exception | None:
        """Why the consumer is no member, and cannot become one."""
        return self._failure or self.view.error

    def health(self) -> dict[str, Any]:
        """The part of `Consumer.health` that is about the group."""
        view, error = self.view, self.error
        age_ms = None if view.confirmed_at is None else (self._loop.time() - view.confirmed_at) * 1000
        return {
            "group_id": self.identity.group_id,
            "state": self._state(view),
            "member_id": self.identity.member_id,
            "member_epoch": view.epoch,
            "coordinator": view.coordinator_id if self._link is not None else self._coordinator.node_id,
            "last_heartbeat_age_ms": age_ms,
            "assignment": [str(tp) for tp in self._assignment.names(self._assignment.states)],
            "error": None if error is None else str(error),
            "last_heartbeat_error": None if view.last_error is None else str(view.last_error),
        }

    def _state(self, view: MemberView) -> str:
        """The state of the membership for `health`: "suspended" while the membership is in doubt, "reconciling" also while
        partitions are taken."""
        if self.error is not None:
            return FAILED
        if self._is_in_doubt:
            return "suspended"
        is_taking = view.target_keys is not None and (
            self._assignment.in_transit or view.target_keys - self._assignment.announced.keys()
        )
        return MemberState.RECONCILING.value if view.state is MemberState.STABLE and is_taking else view.state.value

    @property
    def _is_in_doubt(self) -> bool:
        return bool(self._assignment) and self._is_suspended

    @property
    def is_well(self) -> bool:
        """Whether nothing about the membership needs attention."""
        return self.error is None and self.view.last_error is None and not self._is_in_doubt

    def metrics(self) -> dict[str, Any]:
        """The part of `Consumer.metrics` that is about the group."""
        view, commits, runner = self.view, self._committer.commits, self._rebalancer.runner
        return {
            **self._rebalancer.counters,
            "callbacks_failed": runner.failed,
            "callbacks_cut_off": runner.cut_off,
            "heartbeats": view.heartbeats,
            "heartbeat_failures": view.heartbeat_failures,
            "heartbeat_latency_ms": view.heartbeat_latency_s * 1000,
            "event_loop_lag_ms": 0.0 if self._link is None else self._link.lag_s * 1000,
            "commits": commits.committed,
            "commit_failures": commits.failed,
            "commit_latency_ms": commits.latency.sum / commits.latency.count * 1000 if commits.latency.count else 0.0,
        }
