"""The consumer's side of its membership: gives up and takes partitions, calls the program's callbacks, commits.

One task compares what the coordinator wants with what the consumer owns, and takes one step after the other:

    the tenure has ended     drop everything, call `on_lost`, say that nothing is held
    partitions are to go     hand out no more of them, wait until the program has finished what it has got of them, commit, call
                             `on_revoked`, drop them, report what is left
    partitions are to come   look up their committed offsets, call `on_assigned`, report them, read them

*Held* partitions are owned, but their records are not returned: while they come or go, and while the membership is in doubt.

The program has finished the records that a call has returned when it asks for more (handed_over.py). A partition goes only then,
so its next owner does not read what this program is still working on. The wait ends with the deadline of the rebalance, which is
`REVOKE_SHARE` of `rebalance_timeout_ms`: the coordinator would remove the member soon after. What is committed is in no case
ahead of what was finished.

After each `await` the tenure may have changed. What was begun in an older tenure is not reported, and its partitions are dropped.
"""

from __future__ import annotations

import asyncio
from base64 import urlsafe_b64encode
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from typing import Any, NamedTuple

from strandline.client.cluster.cluster import Cluster
from strandline.client.consumer.fetcher import Fetcher
from strandline.client.consumer.group.callbacks import CallbackRunner, Callbacks
from strandline.client.consumer.group.commits import Commits, Sender
from strandline.client.consumer.group.commits import Membership as CommitMembership
from strandline.client.consumer.group.coordinator import GroupCoordinator
from strandline.client.consumer.group.handed_over import HandedOver
from strandline.client.consumer.group.heartbeat_thread import ThreadLink, may_use_threads
from strandline.client.consumer.group.heartbeats import Act, Heartbeats, MemberView, Progress
from strandline.client.consumer.group.link import Link, LocalLink, reason_of_end
from strandline.client.consumer.group.membership import Identity, MemberState, Topics
from strandline.client.consumer.partition_state import PartitionState
from strandline.client.consumer.records import GroupStateChange, OffsetAndMetadata, TopicPartition
from strandline.client.consumer.subscription import Subscription
from strandline.client.errors import CommitFailed, GroupMembershipFailed, RebalanceCallbackFailed, UsageError, copy_of
from strandline.client.options import ConsumerOptions
from strandline.protocol.doors import Doors, new_uuid
from strandline.protocol.errors import StrandlineError
from strandline.protocol.loggers import get_logger
from strandline.protocol.partitions import TopicIdPartition

logger = get_logger(__name__)

REVOKE_SHARE = 0.8
"""How much of `rebalance_timeout_ms` a revocation may take. The rest is for the heartbeat that reports it."""
STOP_SHARE = 0.7
"""How much of the time of `stop` may pass before the member leaves: for the last commit, and for `on_revoked`."""
LEAVE_S = 3.0
"""How long a request that leaves the group is repeated."""
RESOLVE_AGAIN_S = 0.5
"""When to ask again for the name of an assigned topic, if no broker has known it."""


class Hooks(NamedTuple):
    """What the consumer does for its membership."""

    begin: Callable[[PartitionState], None]
    """Begins to read a state that was just added to the subscription."""
    move: Callable[[PartitionState, int, int], None]
    """Sets the position of a state: offset, and leader epoch of the record before it."""


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
        self._group_id = group_id
        self._random = doors.random
        self._cluster = cluster
        self._subscription = subscription
        self._fetcher = fetcher
        self._hooks = hooks
        self._loop = asyncio.get_running_loop()
        self._rebalance_timeout_ms = options.rebalance_timeout_ms or options.max_poll_interval_ms
        self.identity = Identity(
            group_id,
            urlsafe_b64encode(new_uuid(doors.random)).rstrip(b"=").decode(),
            options.group_instance_id,
            options.client_rack,
            options.group_remote_assignor,
            self._rebalance_timeout_ms,
        )
        self._coordinator = GroupCoordinator(cluster, group_id, cluster.connections.state_at)
        membership = CommitMembership(self._sender, self._owns, self._lost_error, self._after_heartbeat)
        self._commits = Commits(options, group_id, self._coordinator, membership)
        self._callbacks = Callbacks()
        self._runner = CallbackRunner(group_id)
        self._progress = Progress()
        self._handed = HandedOver()
        self._topics: Topics | None = None
        """What the program is subscribed to; None: it is not."""
        self._link: Link | None = None
        """None before the first subscription."""
        self._tenure = 0
        """The tenure in which `_owned` was taken."""
        self._owned: dict[TopicIdPartition, PartitionState] = {}
        self._in_transit: dict[TopicIdPartition, None] = {}
        """Those of `_owned` that come or go."""
        self._announced: dict[TopicIdPartition, None] = {}
        """Those of `_owned` for which `on_assigned` was called, so that `on_revoked` or `on_lost` follows."""
        self._is_suspended = False
        """The membership is in doubt, so everything is held."""
        self._changed = asyncio.Event()
        self._view_waiters: list[asyncio.Future[None]] = []
        self._left = asyncio.Event()
        """Set while the consumer is no member and owns nothing, and when it cannot leave in order any more."""
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._rebalancing: asyncio.Task[None] | None = None
        """The one of `_tasks` that runs `_run`."""
        self._is_stopping = False
        self._failure: GroupMembershipFailed | None = None
        """Why a background task has ended."""
        self._callback_error: RebalanceCallbackFailed | None = None
        """To be raised once."""
        self._last_state = MemberState.UNSUBSCRIBED
        self._last_gap_s: float | None = None
        """How long the program was away when it lost its partitions because of that; None when it has got some since."""
        self._resolve_at = 0.0
        """When the names of topics may be asked for again."""
        self._stop_until: float | None = None
        """When the consumer has to be ready to leave; None: it is not being stopped."""
        self.counters = {"rebalances": 0, "partitions_assigned": 0, "partitions_revoked": 0, "partitions_lost": 0}

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """The cluster was found: commit regularly from now on."""
        if self._options.enable_auto_commit:
            self._spawn(self._commit_regularly(), "auto commit")

    def _spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = self._loop.create_task(coroutine, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._on_task_end)
        return task

    def _on_task_end(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if task is self._rebalancing:
            self._left.set()  # Nobody else could.
        if not self._is_stopping:
            self._fail(f"the background task {task.get_name()!r} has ended: {reason_of_end(task)}")

    def _fail(self, reason: str) -> None:
        """The consumer cannot be a member any more. The coordinator should not wait for it."""
        if self._failure is not None:
            return
        self._failure = GroupMembershipFailed(f"the consumer cannot be a member of group {self._group_id!r}: {reason}")
        logger.error("consumer.membership_failed", group_id=self._group_id, member_id=self.identity.member_id, reason=reason)
        self._topics = None
        self._update_holds()
        self._post(lambda m, now: m.leave(now, LEAVE_S))
        self._notify("failed", reason)
        self._fetcher.wake()

    async def stop(self, deadline: float, *, has_finished: bool) -> None:
        """Commit, give up all partitions, and leave the group, until the deadline (on the loop's clock). `has_finished`: the
        program has finished the records that it has got."""
        self._is_stopping = True
        now = self._loop.time()
        self._stop_until = now + STOP_SHARE * (deadline - now)
        self.unsubscribe(has_finished=has_finished)
        self._fetcher.wake()
        try:
            if self._link is None:
                if self._options.enable_auto_commit:
                    await self._commit_finished(self._subscription.states.values(), deadline)
            else:
                async with asyncio.timeout_at(deadline):
                    await self._left.wait()
        except TimeoutError:
            logger.warning("consumer.leave_timed_out", group_id=self._group_id, member_id=self.identity.member_id)
        finally:
            for task in list(self._tasks):
                task.cancel()
            if self._link is not None:
                await self._link.close()
            if self._tasks:
                await asyncio.wait(list(self._tasks))

    # -- the subscription ---------------------------------------------------------------------------------------------

    @property
    def is_subscribed(self) -> bool:
        return self._topics is not None

    def subscribe(self, topics: Topics, callbacks: Callbacks) -> None:
        """Be a member of the group that reads these topics."""
        if self._failure is not None:
            raise copy_of(self._failure)
        self._topics, self._callbacks = topics, callbacks
        self._left.clear()
        if self._link is None:
            self._link = self._make_link()
            self._rebalancing = self._spawn(self._run(), "rebalance")
        self._post(lambda m, now: m.subscribe(topics, now))
        self._update_holds()
        self._changed.set()

    def unsubscribe(self, *, has_finished: bool = True) -> None:
        """Return no more records, and leave the group in the background."""
        self._topics = None
        if has_finished:
            self._handed.finish_all()
        self._update_holds()
        self._changed.set()

    async def left(self, deadline: float) -> None:
        """Wait until the consumer has left the group, or until the deadline (on the loop's clock)."""
        if self._link is not None:
            async with asyncio.timeout_at(deadline):
                await self._left.wait()

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

    def on_poll(self, only: Collection[TopicPartition] | None) -> None:
        """The program asks for records (of these partitions, or of all)."""
        self._progress.polls += 1
        self._progress.iterated = None
        self._handed.on_poll(only)
        if self._in_transit:
            self._changed.set()  # A revocation may wait for this.
        view = self.view
        if view.state is MemberState.STALE:
            self._post(lambda m, now: m.on_poll(now))
        if self._owned and not self._is_suspended and self._loop.time() >= view.valid_until:
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
        """Raise why the consumer is no member, each time; the error of a callback once."""
        error = self._failure or self.view.error
        if error is not None:
            raise copy_of(error)
        if self._callback_error is not None:
            error, self._callback_error = self._callback_error, None
            raise error

    async def wait(self, deadline: float | None) -> bool:
        """Wait for records, as `Fetcher.wait`. The program is not late meanwhile."""
        self._progress.waiting += 1
        try:
            return await self._fetcher.wait(deadline)
        finally:
            self._progress.waiting -= 1
            self._progress.polls += 1

    # -- what the coordinator says ------------------------------------------------------------------------------------

    def _on_view(self) -> None:
        link = self._link
        assert link is not None, "a link publishes nothing within its constructor"
        view = link.view
        if link.failure is not None:
            self._left.set()
            self._fail(f"the heartbeats have ended: {link.failure}")
        if view.poll_gap_s is not None:
            self._last_gap_s = view.poll_gap_s
        if view.state is not self._last_state:
            reason = view.error or (view.last_error if view.state in (MemberState.FENCED, MemberState.JOINING) else None)
            self._log_state(view)
            self._notify(view.state.value, None if reason is None else str(reason))
        self._update_holds()
        self._changed.set()
        waiters, self._view_waiters = self._view_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        if view.error is not None:
            self._fetcher.wake()

    def _log_state(self, view: MemberView) -> None:
        group_id, member_id = self._group_id, self.identity.member_id
        if self._last_state is MemberState.JOINING and view.target is not None:
            logger.info("consumer.group_joined", group_id=group_id, member_id=member_id, member_epoch=view.epoch)
        elif view.state is MemberState.FENCED and view.last_error is not None:
            logger.warning("consumer.member_fenced", group_id=group_id, member_id=member_id, reason=str(view.last_error))
        elif view.state is MemberState.FAILED:
            logger.error("consumer.membership_failed", group_id=group_id, member_id=member_id, reason=str(view.error))
        elif view.state is MemberState.UNSUBSCRIBED:
            logger.info("consumer.group_left", group_id=group_id, member_id=member_id)

    def _notify(self, state: str, reason: str | None) -> None:
        previous, callback = self._last_state.value, self._options.on_state_change
        if state in {s.value for s in MemberState}:
            self._last_state = MemberState(state)
        if callback is None or state == previous:
            return
        try:
            callback(GroupStateChange(previous, state, reason))
        except Exception as e:
            reason = f"{type(e).__name__}: {e}"
            logger.warning("consumer.callback_failed", group_id=self._group_id, callback="on_state_change", reason=reason)

    def on_cluster(self) -> None:
        """Metadata was refreshed: names of assigned topics may be known now."""
        if self.view.target is not None and len(self.view.target) != len(self._owned):
            self._changed.set()

    # -- held partitions ----------------------------------------------------------------------------------------------

    def _update_holds(self) -> None:
        """Hold the partitions whose records must not be returned now, and release the others."""
        view = self.view
        is_valid = view.tenure == self._tenure and self._loop.time() < view.valid_until
        if self._owned and view.tenure == self._tenure and is_valid == self._is_suspended:
            self._log_validity(is_valid, view)
        self._is_suspended = not is_valid
        for key, state in self._owned.items():
            is_held = not is_valid or key in self._in_transit or not self._reads(state.tp.topic)
            if is_held and not state.is_held:
                state.hold()
            elif not is_held and state.is_held:
                state.release()
                self._fetcher.on_resumed(state)

    def _reads(self, topic: str) -> bool:
        """Whether the program is subscribed to this topic, as far as this side can say."""
        topics = self._topics
        return topics is not None and (topics.pattern is not None or topic in topics.names)

    def _log_validity(self, is_valid: bool, view: MemberView) -> None:
        if is_valid:
            logger.info("consumer.reading_resumed", group_id=self._group_id, member_id=self.identity.member_id)
            return
        silent_ms = None if view.confirmed_at is None else round((self._loop.time() - view.confirmed_at) * 1000)
        reason = "no heartbeat has succeeded" if view.last_error is None else str(view.last_error)
        logger.warning(
            "consumer.reading_suspended",
            group_id=self._group_id,
            member_id=self.identity.member_id,
            silent_ms=silent_ms,
            reason=reason,
        )

    # -- rebalancing --------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            if not await self._step():
                await self._wait_for_change()

    async def _wait_for_change(self) -> None:
        """Wait until there may be something to do; no longer than the membership is valid."""
        view, now = self.view, self._loop.time()
        until = view.valid_until if self._owned and now < view.valid_until else None
        try:
            async with asyncio.timeout_at(until):
                await self._changed.wait()
        except TimeoutError:
            self._update_holds()

    async def _step(self) -> bool:
        """Do what is most urgent. Returns whether there was something."""
        view = self.view
        if view.tenure != self._tenure:
            await self._lose(view)
            return True
        if self._topics is None:
            return await self._leave(view)
        if view.target is None:
            return False
        gone = [key for key in self._owned if key not in view.target]
        if gone:
            await self._give_up(gone)
            return True
        new = self._resolved(key for key in view.target if key not in self._announced)
        if new:
            await self._take(new)
        return bool(new)

    async def _leave(self, view: MemberView) -> bool:
        if self._owned:
            await self._give_up(list(self._owned))
            return True
        if view.state is MemberState.UNSUBSCRIBED:
            self._left.set()
        elif view.state is not MemberState.LEAVING:
            self._post(lambda m, now: m.leave(now, LEAVE_S))
        return False

    async def _lose(self, view: MemberView) -> None:
        """The tenure has ended: everything that was taken in it is lost."""
        lost = sorted(state.tp for key, state in self._owned.items() if key in self._announced)
        self._drop(list(self._owned))
        self._tenure = view.tenure
        if lost:
            self._count("lost", lost)
            await self._call("on_lost", self._callbacks.for_lost(), lost)
        tenure = self._tenure
        self._post(lambda m, now: m.on_released(tenure, now))

    async def _give_up(self, keys: list[TopicIdPartition]) -> None:
        """Revoke these partitions, and report what is left."""
        tenure, deadline = self._tenure, self._rebalance_deadline()
        states = [self._owned[key] for key in keys]
        self._in_transit.update(dict.fromkeys(keys))
        self._update_holds()
        await self._wait_until_finished(states, deadline)
        if self._options.enable_auto_commit:
            await self._commit_finished(states, deadline)
        else:
            await self._commits.settled(deadline)
        if self.view.tenure != tenure:
            return
        revoked = sorted(self._owned[key].tp for key in keys if key in self._announced)
        self._count("revoked", revoked)
        await self._call("on_revoked", self._callbacks.on_revoked, revoked, deadline)
        self._drop(keys)
        self._report(tenure)

    async def _wait_until_finished(self, states: list[PartitionState], deadline: float) -> None:
        """Wait until the program has finished what it has got of these partitions; not when it will not ask for more."""
        tenure = self._tenure
        while self._handed.has_unfinished(states) and self._topics is not None and self.view.tenure == tenure:
            self._changed.clear()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._changed.wait()
            except TimeoutError:
                places = ", ".join(str(state.tp) for state in states)
                logger.warning("consumer.revocation_cut_off", group_id=self._group_id, topic_partitions=places)
                return

    async def _take(self, keys: list[TopicIdPartition]) -> None:
        """Read these partitions from their committed offsets, and report them."""
        tenure = self._tenure
        for key in keys:
            self._in_transit[key] = None
            if key not in self._owned:  # It is if an earlier attempt was interrupted.
                tp = TopicPartition(self._cluster.cache.names[key[0]], key[1])
                self._owned[key] = self._subscription.add(tp, key[0], None)
        self._update_holds()
        self._cluster.metadata.want_topics(dict.fromkeys(self._owned[key].tp.topic for key in keys))
        committed = await self._while_member(self._committed(keys), tenure)
        if committed is None:
            return
        for key in keys:
            self._begin(self._owned[key], committed.get(key))
        self._last_gap_s = None
        tps = [self._owned[key].tp for key in keys]
        self._announced.update(dict.fromkeys(keys))
        self._count("assigned", tps)
        await self._call("on_assigned", self._callbacks.on_assigned, tps)
        for key in keys:
            self._in_transit.pop(key, None)
        self._update_holds()
        self._report(tenure)

    def _begin(self, state: PartitionState, committed: OffsetAndMetadata | None) -> None:
        """Set the first position of a state: the committed offset, or what the reset policy says."""
        self._fetcher.update_leader(state)
        if committed is not None:
            self._hooks.move(state, committed.offset, committed.leader_epoch)
            return
        if self._subscription.default_reset is not None:
            state.reset_to(self._subscription.default_reset)
        self._hooks.begin(state)

    async def _committed(self, keys: list[TopicIdPartition]) -> dict[TopicIdPartition, OffsetAndMetadata]:
        """The committed offsets, asked for until there is an answer."""
        while True:
            try:
                return await self._commits.fetch(keys, self._loop.time() + self._options.request_timeout_ms / 1000)
            except StrandlineError as e:
                logger.warning("consumer.committed_lookup_failed", group_id=self._group_id, reason=str(e))
                await asyncio.sleep(self._options.retry_backoff_ms / 1000)

    async def _while_member(self, coroutine: Coroutine[Any, Any, Any], tenure: int) -> Any:
        """The result of a coroutine. None, and it is cancelled, when the tenure ends or the program unsubscribes."""
        task = self._loop.create_task(coroutine)
        try:
            while not task.done() and self._is_member_in(tenure):
                self._changed.clear()
                change = self._loop.create_task(self._changed.wait())
                try:
                    await asyncio.wait([task, change], return_when=asyncio.FIRST_COMPLETED)
                finally:
                    change.cancel()
            return task.result() if task.done() and self._is_member_in(tenure) else None
        finally:
            task.cancel()

    def _is_member_in(self, tenure: int) -> bool:
        """Whether the program is subscribed, and the tenure has not ended."""
        return self._topics is not None and self.view.tenure == tenure

    def _resolved(self, keys: Iterable[TopicIdPartition]) -> list[TopicIdPartition]:
        """Those of these partitions whose topics' names are known, in order. The names of the others are asked for."""
        names, wanted = self._cluster.cache.names, sorted(keys)
        unknown = dict.fromkeys(topic_id for topic_id, _ in wanted if topic_id not in names)
        if unknown and self._loop.time() >= self._resolve_at:
            self._resolve_at = self._loop.time() + RESOLVE_AGAIN_S
            self._cluster.metadata.want_topic_ids(unknown)
            self._loop.call_later(RESOLVE_AGAIN_S, self._changed.set)
        known = sorted((TopicPartition(names[key[0]], key[1]), key) for key in wanted if key[0] in names)
        return [key for tp, key in known if key in self._owned or tp not in self._subscription.states]

    def _drop(self, keys: list[TopicIdPartition]) -> None:
        """Read these partitions no longer."""
        states = [self._owned.pop(key) for key in keys]
        for state in states:
            self._in_transit.pop(state.key, None)
            self._announced.pop(state.key, None)
            self._handed.forget(state)
            if self._subscription.states.get(state.tp) is state:
                self._subscription.remove(state.tp)
        self._fetcher.drop(states)

    def _report(self, tenure: int) -> None:
        owned = frozenset(self._owned)
        self._post(lambda m, now: m.on_owned(tenure, owned, now))

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

    async def _call(self, name: str, callback: Any, tps: list[TopicPartition], deadline: float | None = None) -> None:
        error = await self._runner.run(name, callback, tps, self._rebalance_deadline() if deadline is None else deadline)
        if error is not None:
            self._callback_error = error
            self._fetcher.wake()

    def _rebalance_deadline(self) -> float:
        """When a step that begins now has to be done; earlier if the consumer is being stopped."""
        deadline = self._loop.time() + REVOKE_SHARE * self._rebalance_timeout_ms / 1000
        return deadline if self._stop_until is None else min(deadline, self._stop_until)

    # -- committed offsets --------------------------------------------------------------------------------------------

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata] | None, deadline: float) -> None:
        """Store these offsets, or the positions of all assigned partitions (None). See `Commits.commit`."""
        states = self._subscription.states
        missing = [tp for tp in offsets or () if tp not in states]
        if missing and self._is_without_group:
            raise UsageError(f"{missing[0]} is not assigned to this consumer")
        if offsets is None:
            positions = {state: (state.position, state.position_epoch) for state in states.values() if state.position >= 0}
            wanted = {state: OffsetAndMetadata(offset, "", epoch) for state, (offset, epoch) in positions.items()}
        else:
            wanted = {states[tp]: offset for tp, offset in offsets.items() if tp in states}
        try:
            await self._commits.commit(wanted, deadline)
        finally:
            if missing:
                raise self._lost_error(None, missing[0])

    async def committed(
        self, keys: Mapping[TopicIdPartition, TopicPartition], deadline: float
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """The committed offsets of those of these partitions that have one."""
        found = await self._commits.fetch(keys, deadline, as_member=False)
        return {tp: found[key] for key, tp in keys.items() if key in found}

    async def begin_assigned(self, states: Iterable[PartitionState], deadline: float) -> None:
        """Set the positions of partitions that were assigned by hand."""
        by_key = {state.key: state for state in states}
        committed = await self._commits.fetch(by_key, deadline, as_member=False)
        for key, state in by_key.items():
            if self._subscription.by_key.get(key) is state:
                self._begin(state, committed.get(key))

    def _sender(self) -> Sender:
        """As what the consumer commits now."""
        if self._is_without_group:
            return Sender()
        view = self.view
        if view.tenure != self._tenure or view.epoch <= 0:
            raise self._lost_error(None)
        return Sender(self.identity.member_id, view.epoch, self.identity.instance_id)

    @property
    def _is_without_group(self) -> bool:
        """Whether partitions are assigned by hand."""
        return not self._owned and not self._subscription.by_group

    def _owns(self, state: PartitionState) -> bool:
        if self._is_without_group:
            return self._subscription.states.get(state.tp) is state
        return self._owned.get(state.key) is state and self.view.tenure == self._tenure

    def _lost_error(self, state: PartitionState | None, tp: TopicPartition | None = None) -> CommitFailed:
        """The error of a commit for a partition that is not the consumer's, or of a consumer that is no member."""
        self._post(lambda m, now: m.beat_now(now))
        what = f"the coordinator of group {self._group_id!r} does not count this consumer as a member"
        tp = tp if state is None else state.tp
        if tp is not None:
            what = f"{tp} is not assigned to this consumer, or not any more"
        gap_s = self.view.poll_gap_s or self._last_gap_s
        if gap_s is not None:
            limit = self._options.max_poll_interval_ms
            what += f": the program had not asked for records for {gap_s:.1f} s (max_poll_interval_ms={limit})"
        return CommitFailed(what, topic=None if tp is None else tp.topic, partition=None if tp is None else tp.partition)

    async def _after_heartbeat(self, deadline: float) -> None:
        """Wait until a heartbeat that was sent after this call has succeeded, the tenure has ended, or the time is up."""
        now, tenure = self._loop.time(), self._tenure
        self._post(lambda m, now: m.beat_now(now))
        while self._loop.time() < deadline and self.view.tenure == tenure and (self.view.confirmed_at or 0.0) < now:
            waiter = self._loop.create_future()
            self._view_waiters.append(waiter)
            await asyncio.wait([waiter], timeout=max(0.0, deadline - self._loop.time()))

    async def _commit_regularly(self) -> None:
        while True:
            await asyncio.sleep(self._options.auto_commit_interval_ms / 1000)
            if self._is_without_group:
                states = list(self._subscription.states.values())
            else:
                states = [self._owned[key] for key in self._announced if key not in self._in_transit]
            await self._commit_finished(states, self._loop.time() + self._options.request_timeout_ms / 1000)

    async def _commit_finished(self, states: Iterable[PartitionState], deadline: float) -> None:
        """Commit what the program has finished. A failure is logged: what is not committed is read again."""
        offsets = {}
        for state in states:
            finished, last = self._handed.finished(state), self._commits.last.get(state.key)
            if finished is not None and (last is None or last.offset != finished[0]):
                offsets[state] = OffsetAndMetadata(finished[0], "", finished[1])
        if not offsets:
            return
        try:
            await self._commits.commit(offsets, deadline)
        except StrandlineError as e:
            logger.warning("consumer.commit_failed", group_id=self._group_id, reason=str(e))

    # -- what an operator sees ----------------------------------------------------------------------------------------

    def health(self) -> dict[str, Any]:
        """The part of `Consumer.health` that is about the group."""
        view = self.view
        error = self._failure or view.error
        age_ms = None if view.confirmed_at is None else (self._loop.time() - view.confirmed_at) * 1000
        return {
            "group_id": self._group_id,
            "state": "failed" if error is not None else "suspended" if self._is_in_doubt else view.state.value,
            "member_id": self.identity.member_id,
            "member_epoch": view.epoch,
            "coordinator": view.coordinator_id if self._link is not None else self._coordinator.node_id,
            "last_heartbeat_age_ms": age_ms,
            "assignment": [str(tp) for tp in sorted(state.tp for state in self._owned.values())],
            "error": None if error is None else str(error),
            "last_heartbeat_error": None if view.last_error is None else str(view.last_error),
        }

    @property
    def _is_in_doubt(self) -> bool:
        return bool(self._owned) and self._is_suspended

    @property
    def is_well(self) -> bool:
        """Whether nothing about the membership needs attention."""
        return self._failure is None and self.view.error is None and self.view.last_error is None and not self._is_in_doubt

    def metrics(self) -> dict[str, Any]:
        """The part of `Consumer.metrics` that is about the group."""
        view, commits = self.view, self._commits
        return {
            **self.counters,
            "callbacks_failed": self._runner.failed,
            "callbacks_cut_off": self._runner.cut_off,
            "heartbeats": view.heartbeats,
            "heartbeat_failures": view.heartbeat_failures,
            "heartbeat_latency_ms": view.heartbeat_latency_s * 1000,
            "event_loop_lag_ms": 0.0 if self._link is None else self._link.lag_s * 1000,
            "commits": commits.committed,
            "commit_failures": commits.failed,
            "commit_latency_ms": commits.latency.sum / commits.latency.count * 1000 if commits.latency.count else 0.0,
        }
