"""Takes and gives up partitions as the coordinator's target requires, one step after the other.

    the tenure has ended         drop all partitions, call `on_lost`, report that nothing is held
    partitions are revoked       return no more of their records, wait until the program has finished those that it got, commit,
                                 call `on_revoked`, drop the partitions, report that they are given up
    partitions are assigned      look up their committed offsets, call `on_assigned`, read them

The program has finished the records that a call returned when it asks for more (handed_over.py). A partition is given up only
then, so that its next owner does not read records that this program is still processing. The wait ends with the deadline of the
rebalance, which is `REVOKE_SHARE` of `rebalance_timeout_ms`, because the coordinator would remove the member soon after. The
commit never goes beyond the finished records.

After each `await` the tenure may have changed. The membership ignores the report of a step that was begun in an older tenure, and
the next step drops the partitions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from strandline.client.cluster.cluster import Cluster
from strandline.client.consumer.fetcher import Fetcher
from strandline.client.consumer.group.assignment import Assignment
from strandline.client.consumer.group.callbacks import CallbackRunner, Callbacks, RebalanceCallback
from strandline.client.consumer.group.committer import Committer
from strandline.client.consumer.group.handed_over import HandedOver
from strandline.client.consumer.group.heartbeats import Act, MemberView
from strandline.client.consumer.group.membership import Identity, MemberState
from strandline.client.consumer.partition_state import PartitionState
from strandline.client.consumer.records import OffsetAndMetadata, TopicPartition
from strandline.client.consumer.subscription import Subscription
from strandline.client.errors import RebalanceCallbackFailed
from strandline.client.options import ConsumerOptions
from strandline.protocol.errors import StrandlineError
from strandline.protocol.loggers import get_logger
from strandline.protocol.partitions import TopicIdPartition

logger = get_logger(__name__)

REVOKE_SHARE = 0.8
"""Share of `rebalance_timeout_ms` that a revocation may take. The rest is for the heartbeat that reports it."""
LEAVE_S = 3.0
"""Seconds for which the request that leaves the group is repeated."""
RESOLVE_AGAIN_S = 0.5
"""The pause before the name of an assigned topic is asked for again, if the metadata did not have its id."""


class Hooks(NamedTuple):
    """The functions of the consumer that its membership calls."""

    begin: Callable[[PartitionState], None]
    """Begins to read a state that was just added to the subscription."""
    move: Callable[[PartitionState, int, int], None]
    """Sets the position of a state: offset, and leader epoch of the record before it."""


class Standing(NamedTuple):
    """The rebalancer's access to the membership, and to what `GroupMember` decides."""

    view: Callable[[], MemberView]
    post: Callable[[Act], None]
    is_subscribed: Callable[[], bool]
    """Whether the program wants to be in the group."""
    update_holds: Callable[[], None]
    """Must be called when partitions were taken or are being revoked."""


class Rebalancer:
    """One task, `run`, that does the steps of one consumer."""

    def __init__(
        self,
        options: ConsumerOptions,
        identity: Identity,
        cluster: Cluster,
        subscription: Subscription,
        fetcher: Fetcher,
        assignment: Assignment,
        committer: Committer,
        handed: HandedOver,
        standing: Standing,
        hooks: Hooks,
    ) -> None:
        self._options = options
        self._group_id = identity.group_id
        self._timeout_s = identity.rebalance_timeout_ms / 1000
        self._cluster = cluster
        self._subscription = subscription
        self._fetcher = fetcher
        self._assignment = assignment
        self._committer = committer
        self._handed = handed
        self._standing = standing
        self._hooks = hooks
        self._loop = asyncio.get_running_loop()
        self.callbacks = Callbacks()
        self.runner = CallbackRunner(identity.group_id)
        self.changed = asyncio.Event()
        """Set when a step may be due."""
        self.left = asyncio.Event()
        """Set while the consumer is no member and has no partitions. Also set when the rebalancer or the heartbeats have failed,
        because the consumer cannot leave in order then."""
        self.callback_error: RebalanceCallbackFailed | None = None
        """The error of a callback. The next call of the program that returns records raises it."""
        self.stop_until: float | None = None
        """When the consumer must be ready to leave the group, on the loop's clock; None: it is not being stopped."""
        self._resolve_at = 0.0
        """When the names of topics may be asked for again, on the loop's clock."""
        self.counters = {
            "rebalances": 0,
            "partitions_assigned": 0,
            "partitions_revoked": 0,
            "partitions_lost": 0,
            "revocations_cut_off": 0,
        }

    async def run(self) -> None:
        """Do each step that is due, until cancelled."""
        while True:
            self.changed.clear()
            if not await self._step():
                await self._wait_for_change()

    async def _wait_for_change(self) -> None:
        """Wait until there may be something to do; no longer than the membership is valid."""
        view, now = self._standing.view(), self._loop.time()
        until = view.valid_until if self._assignment and now < view.valid_until else None
        if not await self._change_before(until):
            self._standing.update_holds()

    async def _change_before(self, until: float | None) -> bool:
        try:
            async with asyncio.timeout_at(until):
                await self.changed.wait()
        except TimeoutError:
            return False
        return True

    async def _step(self) -> bool:
        """Do the most urgent step. Returns whether one was due."""
        view = self._standing.view()
        if view.tenure != self._assignment.tenure:
            await self._lose(view)
            return True
        if not self._standing.is_subscribed():
            return await self._leave(view)
        if view.target_keys is None:
            return False
        gone = sorted(view.owned_keys - view.target_keys)
        if gone:
            await self._give_up(gone, self._revocation_deadline())
            return True
        new = self._resolved(sorted(view.target_keys.difference(self._assignment.announced)))
        if new:
            await self._take(new)
        return bool(new)

    # -- giving up ----------------------------------------------------------------------------------------------------

    async def _leave(self, view: MemberView) -> bool:
        if self._assignment:
            await self._give_up(list(self._assignment.states), self._deadline())
            return True
        if view.state is MemberState.UNSUBSCRIBED:
            self.left.set()
        elif view.state is not MemberState.LEAVING:
            self._standing.post(lambda m, now: m.leave(now, LEAVE_S))
        return False

    async def _lose(self, view: MemberView) -> None:
        """The tenure has ended: all partitions that were taken in it are lost."""
        lost = self._assignment.names(self._assignment.states)
        self._assignment.drop(list(self._assignment.states))
        tenure = self._assignment.tenure = view.tenure
        self._count("lost", lost)
        await self._call("on_lost", self.callbacks.for_lost(), lost, self._deadline())
        self._standing.post(lambda m, now: m.on_released(tenure, now))

    async def _give_up(self, keys: list[TopicIdPartition], deadline: float) -> None:
        """Revoke these partitions. Those that were not taken are given up as well."""
        tenure = self._assignment.tenure
        states = [self._assignment.states[key] for key in keys if key in self._assignment.states]
        self._assignment.in_transit.update(dict.fromkeys(state.key for state in states))
        self._standing.update_holds()
        self._handed.on_revoking(states, deadline)
        await self._wait_until_finished(states, deadline)
        if self._options.enable_auto_commit:
            await self._committer.commit_finished(states, deadline)
        else:
            await self._committer.commits.settled(deadline)
        if self._standing.view().tenure != tenure:
            return
        revoked = self._assignment.names(state.key for state in states)
        self._count("revoked", revoked)
        await self._call("on_revoked", self.callbacks.on_revoked, revoked, deadline)
        self._assignment.drop(keys)
        self._standing.post(lambda m, now: m.on_given_up(tenure, keys, now))

    async def _wait_until_finished(self, states: list[PartitionState], deadline: float) -> None:
        """Wait until the program has finished the records of these partitions that it got, or until the deadline. It does not
        wait if the program has unsubscribed, or the tenure has ended."""
        while self._handed.has_unfinished(states) and self._is_member_in(self._assignment.tenure):
            self.changed.clear()
            if not await self._change_before(deadline):
                self.counters["revocations_cut_off"] += 1
                names = ", ".join(str(state.tp) for state in states)
                logger.warning("consumer.revocation_cut_off", group_id=self._group_id, topic_partitions=names)
                return

    # -- taking -------------------------------------------------------------------------------------------------------

    async def _take(self, keys: list[TopicIdPartition]) -> None:
        """Read these partitions from their committed offsets."""
        tenure, names = self._assignment.tenure, self._cluster.cache.names
        for key in keys:
            self._assignment.take(TopicPartition(names[key[0]], key[1]), key)
        self._standing.update_holds()
        self._cluster.metadata.want_topics(dict.fromkeys(names[topic_id] for topic_id, _ in keys))
        committed = await self._while_member(self._committed(keys), tenure)
        if committed is None:
            return
        for key in keys:
            self.begin(self._assignment.states[key], committed.get(key))
        self._committer.last_gap_s = None
        self._assignment.announced.update(dict.fromkeys(keys))
        assigned = self._assignment.names(keys)
        self._count("assigned", assigned)
        await self._call("on_assigned", self.callbacks.on_assigned, assigned, self._deadline())
        for key in keys:
            self._assignment.in_transit.pop(key, None)
        self._standing.update_holds()
        self._fetcher.wake()

    def begin(self, state: PartitionState, committed: OffsetAndMetadata | None) -> None:
        """Set the first position of a state: the committed offset, or the offset that the reset policy selects."""
        self._fetcher.update_leader(state)
        if committed is not None:
            self._hooks.move(state, committed.offset, committed.leader_epoch)
            return
        if self._subscription.default_reset is not None:
            state.reset_to(self._subscription.default_reset)
        self._hooks.begin(state)

    async def _committed(self, keys: list[TopicIdPartition]) -> dict[TopicIdPartition, OffsetAndMetadata]:
        """The committed offsets of these partitions. A failed look-up is logged, and repeated until it succeeds."""
        while True:
            try:
                deadline = self._loop.time() + self._options.request_timeout_ms / 1000
                return await self._committer.commits.fetch(keys, deadline)
            except StrandlineError as e:
                logger.warning("consumer.committed_lookup_failed", group_id=self._group_id, reason=str(e))
                await asyncio.sleep(self._options.retry_backoff_ms / 1000)

    async def _while_member(self, coroutine: Coroutine[Any, Any, Any], tenure: int) -> Any:
        """The result of a coroutine. If the tenure ends or the program unsubscribes first, the coroutine is cancelled and the
        result is None."""
        task = self._loop.create_task(coroutine)
        try:
            while not task.done() and self._is_member_in(tenure):
                self.changed.clear()
                change = self._loop.create_task(self.changed.wait())
                try:
                    await asyncio.wait([task, change], return_when=asyncio.FIRST_COMPLETED)
                finally:
                    change.cancel()
            return task.result() if task.done() and self._is_member_in(tenure) else None
        finally:
            task.cancel()

    def _is_member_in(self, tenure: int) -> bool:
        """Whether the program is subscribed, and the tenure has not ended."""
        return self._standing.is_subscribed() and self._standing.view().tenure == tenure

    def _resolved(self, keys: list[TopicIdPartition]) -> list[TopicIdPartition]:
        """The partitions whose topics' names are in the metadata, in order. The names of the other topics are requested."""
        names = self._cluster.cache.names
        unknown = dict.fromkeys(topic_id for topic_id, _ in keys if topic_id not in names)
        if unknown and self._loop.time() >= self._resolve_at:
            self._resolve_at = self._loop.time() + RESOLVE_AGAIN_S
            self._cluster.metadata.want_topic_ids(unknown)
            self._loop.call_later(RESOLVE_AGAIN_S, self.changed.set)
        known = sorted((TopicPartition(names[key[0]], key[1]), key) for key in keys if key[0] in names)
        return [key for tp, key in known if self._assignment.may_take(tp, key)]

    # -- callbacks, counters ------------------------------------------------------------------------------------------

    def _deadline(self) -> float:
        """The deadline of a step that begins now, on the loop's clock; earlier if the consumer is being stopped."""
        deadline = self._loop.time() + REVOKE_SHARE * self._timeout_s
        return deadline if self.stop_until is None else min(deadline, self.stop_until)

    def _revocation_deadline(self) -> float:
        """The deadline of a revocation. The coordinator's rebalance timeout runs from the heartbeat that brought the target, also
        while another callback is still running."""
        return min(self._deadline(), self._standing.view().target_at + REVOKE_SHARE * self._timeout_s)

    async def _call(self, name: str, callback: RebalanceCallback | None, tps: list[TopicPartition], deadline: float) -> None:
        error = await self.runner.run(name, callback, tps, deadline)
        if error is not None:
            self.callback_error = error
            self._fetcher.wake()

    def _count(self, event: str, tps: list[TopicPartition]) -> None:
        if not tps:
            return
        self.counters["rebalances"] += 1
        self.counters[f"partitions_{event}"] += len(tps)
        names = ", ".join(map(str, tps))
        if event == "lost":
            logger.warning("consumer.partitions_lost", group_id=self._group_id, topic_partitions=names)
        elif event == "revoked":
            logger.info("consumer.partitions_revoked", group_id=self._group_id, topic_partitions=names)
        else:
            logger.info("consumer.partitions_assigned", group_id=self._group_id, topic_partitions=names)
