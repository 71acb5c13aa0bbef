"""The shell of the transaction coordinator: it carries out the decisions of the shards.

    request -> decision -> record appended and replayed -> record committed -> answer, and markers -> Complete record

The answer and the markers each wait for the commit: the answer for `COMMIT_TIMEOUT_MS`, the markers as long as it takes.

After a load, the markers of all prepared transactions are sent again, because the previous coordinator may not have sent all of
them. A timer of each shard looks for transactions that take too long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from functools import partial
from typing import Protocol

from strandline.broker.coordination.coordinator import ActiveShard, Coordinator, Host
from strandline.broker.coordination.loader import ShardLoader
from strandline.broker.coordination.replies import as_coordinator
from strandline.broker.transactions.completion_waiters import CompletionWaiters
from strandline.broker.transactions.config import TransactionConfig
from strandline.broker.transactions.loader import TransactionLoader
from strandline.broker.transactions.marker_queue import Sending
from strandline.broker.transactions.marker_sender import Channels, MarkerSender
from strandline.broker.transactions.metrics import End, TransactionMetrics
from strandline.broker.transactions.records import TransactionRecord, encode_record
from strandline.broker.transactions.shard import Decision, Markers, TransactionShard
from strandline.controller.metadata.internal_topics import TRANSACTION_STATE_TOPIC
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.log_limits import LineLimits
from strandline.protocol.loggers import get_logger
from strandline.protocol.records.builder import BatchBuilder

logger = get_logger(__name__)

COMMIT_TIMEOUT_MS = 5000
"""The time for which an answer waits until its record is committed. After that the answer is COORDINATOR_NOT_AVAILABLE."""
COMPLETE_BACKOFF_S = 0.1

ActiveTransactions = ActiveShard[TransactionShard]


class FreshIds(Protocol):
    """`ProducerIds`, as far as it is needed here."""

    async def next_id(self) -> int: ...


class TransactionCoordinator(Coordinator[TransactionShard]):
    """The transactional ids of one broker."""

    topic_name = TRANSACTION_STATE_TOPIC
    loader_class = TransactionLoader
    subject = "transactions"

    def __init__(self, config: TransactionConfig, host: Host, channels: Channels, fresh_ids: FreshIds) -> None:
        super().__init__(host, COMMIT_TIMEOUT_MS)
        self.config = config
        self.metrics = TransactionMetrics()
        self.fresh_ids = fresh_ids
        self.retried_completions = 0
        """The number of transactions that wait for another attempt to append their Complete record."""
        self.markers = MarkerSender(
            channels, lambda: host.directory.image, on_written=self._on_written, on_answered=self._on_markers_answered
        )
        self.completions = CompletionWaiters(host.call_later)
        self._limits = LineLimits()
        self._tasks: dict[asyncio.Future[None], None] = {}
        self._forget_due: dict[ActiveTransactions, float] = {}
        """When to look for expired transactional ids next, on the loop's clock."""
        self._awaiting_ids: set[ActiveTransactions] = set()
        """The shards that wait for producer ids, to abort transactions whose epochs are exhausted."""

    # -- leadership ---------------------------------------------------------------------------------------------------

    def _new_shard(self) -> TransactionShard:
        return TransactionShard(self.config)

    def _on_loaded(self, active: ActiveTransactions, loader: ShardLoader[TransactionShard], took_s: float) -> None:
        self.metrics.on_load(took_s, self.host.now())
        prepared = list(active.shard.on_loaded())
        if loader.records or loader.skipped:
            logger.info(
                "transactions.loaded",
                **active.partition.fields,
                records=loader.records,
                skipped=loader.skipped,
                transactional_ids=len(active.shard.transactions),
                prepared=len(prepared),
                took_ms=round(took_s * 1000),
            )
        self._forget_due[active] = self._next_forgetting()
        for markers in prepared:
            self._send_when_committed(active, markers)
        self._arm(active)

    def _on_load_failed(self, active: ActiveTransactions, error: Exception) -> None:
        logger.error("transactions.load_failed", **active.partition.fields, reason=str(error))

    def _on_unloaded(self, active: ActiveTransactions) -> None:
        self.markers.cancel(active)
        self._forget_due.pop(active, None)
        for transactional_id in active.shard.transactions:
            self.completions.wake(transactional_id)
        if active.shard.transactions:
            logger.info("transactions.unloaded", **active.partition.fields, transactional_ids=len(active.shard.transactions))

    def stop(self) -> None:
        super().stop()
        self.close()

    def close(self) -> None:
        """Send no more markers, and cancel the requests that wait for a producer id, without an answer."""
        self.is_stopped = True
        self.markers.stop()
        for active in self.shards.values():
            self._cancel_timer(active)
        for task in list(self._tasks):
            task.cancel()

    def recent_loads_s(self) -> list[float]:
        """The seconds that each load took which ended in about the last half minute."""
        return self.metrics.recent_loads_s(self.host.now())

    def run(self, work: Awaitable[None]) -> None:
        """Run the rest of a decision that awaits a producer id. It is cancelled when the broker stops."""
        task = asyncio.ensure_future(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    # -- carrying out -------------------------------------------------------------------------------------------------

    def carry_out(self, active: ActiveTransactions, decision: Decision, *, is_timeout: bool = False) -> None:
        """Append the record of a decision, and have its markers sent when it is committed. Raises the `BrokerError` of a
        coordinator if the record cannot be appended: then nothing has changed."""
        if decision.record is not None:
            self._append(active, decision.record)
            self._arm(active)
        if decision.markers is not None:
            self._count(decision.markers, is_timeout)
            self._send_when_committed(active, decision.markers)

    def _append(self, active: ActiveTransactions, record: TransactionRecord) -> None:
        began, now_ms = self.host.stopwatch(), self.host.wall_clock_ms()
        builder = BatchBuilder()
        builder.append(*encode_record(record), (), now_ms)
        try:
            self._append_batches(active, builder.build(), now_ms)
        except BrokerError as e:
            suppressed = self._limits.admit("append", self.host.now())
            if suppressed is not None:
                logger.warning("transactions.append_failed", **active.partition.fields, reason=str(e), **suppressed.fields)
            raise as_coordinator(e) from None
        active.shard.replay(record)
        self.metrics.append.observe(self.host.stopwatch() - began)

    def _count(self, markers: Markers, is_timeout: bool) -> None:
        end = End.TIMEOUT if is_timeout else End.COMMIT if markers.is_commit else End.ABORT
        self.metrics.ended[end] += 1

    # -- markers ------------------------------------------------------------------------------------------------------

    def _send_when_committed(self, active: ActiveTransactions, markers: Markers) -> None:
        self.on_committed(active, partial(self._send_markers, active, markers))

    def _send_markers(self, active: ActiveTransactions, markers: Markers) -> None:
        if active.is_current:
            self.markers.send(active, markers, active.leader_state.epoch)

    def _on_markers_answered(self, count: int) -> None:
        self.metrics.markers_written += count

    def _on_written(self, sending: Sending) -> None:
        active = sending.owner
        assert isinstance(active, ActiveShard)
        self.metrics.completion.observe(self.host.now() - sending.began_at)
        self._complete(active, sending.markers)

    def _complete(self, active: ActiveTransactions, markers: Markers) -> None:
        """Append the Complete record. If that fails, for example because the ISR is too small, try again after a pause."""
        if self.is_stopped or not active.is_loaded:
            return
        try:
            self.carry_out(active, active.shard.complete(markers, self.host.wall_clock_ms()))
        except BrokerError:
            self.retried_completions += 1
            self.host.call_later(COMPLETE_BACKOFF_S, partial(self._complete_again, active, markers))
        else:
            self.completions.wake(markers.transactional_id)

    def _complete_again(self, active: ActiveTransactions, markers: Markers) -> None:
        self.retried_completions -= 1
        self._complete(active, markers)

    # -- time ---------------------------------------------------------------------------------------------------------

    def _arm(self, active: ActiveTransactions) -> None:
        """Start the timer of the next sweep, if the shard has transactional ids and no timer."""
        if active.shard.transactions and active.timer is None:
            interval_s = self.config.transaction_abort_timed_out_transaction_cleanup_interval_ms / 1000
            self._set_timer(active, self.host.now() + interval_s, lambda: self._sweep(active))

    def _sweep(self, active: ActiveTransactions) -> None:
        """Abort what has timed out, and forget unused ids. The aborts that need new producer ids do not delay the others: they
        follow when the controller has allocated the ids."""
        self._abort_timed_out(active)
        if self.host.now() >= self._forget_due.get(active, float("inf")):
            self._forget_due[active] = self._next_forgetting()
            self._carry_out_all(active, active.shard.forget_unused(self.host.wall_clock_ms()))
        exhausted = active.shard.count_exhausted(self.host.wall_clock_ms())
        if exhausted and active not in self._awaiting_ids:
            self._awaiting_ids.add(active)
            self.run(self._abort_exhausted(active, exhausted))
        self._arm(active)

    def _abort_timed_out(self, active: ActiveTransactions, fresh_ids: Iterable[int] = ()) -> None:
        decisions = active.shard.abort_timed_out(iter(fresh_ids), self.host.wall_clock_ms())
        self._carry_out_all(active, decisions, is_timeout=True)

    async def _abort_exhausted(self, active: ActiveTransactions, exhausted: int) -> None:
        """Get producer ids for the timed-out transactions that need new ones, and abort them. If an id cannot be allocated, its
        transaction waits for a later sweep."""
        fresh_ids: list[int] = []
        try:
            while len(fresh_ids) < exhausted:
                fresh_ids.append(await self.fresh_ids.next_id())
        except BrokerError:
            pass
        finally:
            self._awaiting_ids.discard(active)
        if active.is_loaded:
            self._abort_timed_out(active, fresh_ids)

    def _next_forgetting(self) -> float:
        return self.host.now() + self.config.transaction_remove_expired_transaction_cleanup_interval_ms / 1000

    def _carry_out_all(self, active: ActiveTransactions, decisions: Iterable[Decision], *, is_timeout: bool = False) -> None:
        """Carry out decisions until an append fails; that one and the rest wait for the next sweep. A record that is too large
        is skipped, so that it does not hold up the others."""
        for decision in decisions:
            try:
                self.carry_out(active, decision, is_timeout=is_timeout)
            except BrokerError as e:
                if e.code is ErrorCode.UNKNOWN_SERVER_ERROR:
                    continue
                return
            if is_timeout and decision.markers is not None:
                self._log_timeout(decision.markers)

    @staticmethod
    def _log_timeout(markers: Markers) -> None:
        logger.info(
            "transactions.timed_out",
            transactional_id=markers.transactional_id,
            producer_id=markers.producer_id,
            partitions=len(markers.partitions),
        )
