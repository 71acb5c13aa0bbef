"""Committed offsets of the consumer's group: stores them, and looks them up.

Requests are sent again until they succeed, fail for good, or the time is up. Three rules keep a late attempt from doing harm:

- One commit is in flight at a time, and later ones wait for it in the order of the calls. So an older offset that is sent again
  never overwrites a newer one.
- Each attempt leaves out partitions that were given up since the call, and perhaps assigned again (they have another
  `PartitionState`); their commit fails.
- STALE_MEMBER_EPOCH means that the coordinator has moved the member to another epoch, and that the heartbeat response with it has
  not arrived yet. The attempt is repeated after the next heartbeat, with the member's new epoch.

A consumer that assigns partitions by hand commits without a membership. The coordinator accepts that while the group has no
members.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import NamedTuple

from strandline.client.cluster.coordinator import ANSWER_TIMEOUT_MS, CoordinatorConnection
from strandline.client.consumer.group.membership import by_topic_id
from strandline.client.consumer.partition_state import PartitionState
from strandline.client.consumer.records import OffsetAndMetadata
from strandline.client.errors import CommitFailed, RequestFailed, RequestTimeout, describe, request_failed
from strandline.client.options import ConsumerOptions
from strandline.protocol.apis import OFFSET_COMMIT, OFFSET_FETCH
from strandline.protocol.errors import ERRORS, ErrorCode, StrandlineError, to_code
from strandline.protocol.messages.groups import (
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchGroup,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from strandline.protocol.metrics import Histogram
from strandline.protocol.partitions import TopicIdPartition

RETRY_S = 0.05
RETRY_MAX_S = 1.0

_LOST = frozenset({
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.GROUP_ID_NOT_FOUND,
})  # fmt: skip
"""Errors that mean that the sender is not, or no longer, a member of the group."""
_NOT_RETRIED = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})
"""Errors that mean that the topic was deleted. Another attempt would only delay a rebalance."""

Offsets = Mapping[PartitionState, OffsetAndMetadata]


class Sender(NamedTuple):
    """The member id, member epoch and instance id of a request. The defaults are those of a commit without a membership."""

    member_id: str = ""
    epoch: int = -1
    instance_id: str | None = None


class Membership(NamedTuple):
    """The functions with which commits read the membership."""

    sender: Callable[[], Sender]
    owns: Callable[[PartitionState], bool]
    """Whether the partition is still assigned to this consumer."""
    lost: Callable[[PartitionState | None], CommitFailed]
    """The error for a partition that is no longer assigned, or (None) for a consumer that is no longer a member."""
    after_heartbeat: Callable[[float], Awaitable[None]]
    """Waits until a heartbeat that is sent after this call was answered, or until the given time (on the loop's clock)."""


class Commits:
    """Commits and fetches offsets of one group."""

    def __init__(
        self, options: ConsumerOptions, group_id: str, coordinator: CoordinatorConnection, membership: Membership
    ) -> None:
        self._options = options
        self._group_id = group_id
        self._coordinator = coordinator
        self._membership = membership
        self._lock = asyncio.Lock()
        self.last: dict[TopicIdPartition, OffsetAndMetadata] = {}
        """By partition, the committed offset that this consumer last stored or looked up."""
        self.committed = self.failed = 0
        """Numbers of calls that have succeeded and failed."""
        self.latency = Histogram()
        """Seconds that successful commits took."""

    # -- committing ---------------------------------------------------------------------------------------------------

    async def commit(self, offsets: Offsets, deadline: float) -> None:
        """Store these offsets, until the deadline (on the loop's clock).

        Raises CommitFailed if a partition is no longer the consumer's, RequestFailed if the coordinator rejects the offset of
        one, and RequestTimeout. The offsets of the other partitions are stored all the same."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        attempt = _Attempt(dict(offsets))
        try:
            async with asyncio.timeout_at(deadline), self._lock:
                await self._commit(attempt, deadline)
        except TimeoutError:
            attempt.error = attempt.timed_out(loop.time() - started)
        except CommitFailed as e:
            attempt.error = e
        if attempt.error is not None:
            self.failed += 1
            raise attempt.error
        self.committed += 1
        self.latency.observe(loop.time() - started)

    async def settled(self, deadline: float) -> None:
        """Wait until the commits of earlier calls have ended, or until the deadline."""
        try:
            async with asyncio.timeout_at(deadline), self._lock:
                pass
        except TimeoutError:
            pass

    async def _commit(self, attempt: _Attempt, deadline: float) -> None:
        while True:
            self._leave_out_lost(attempt)
            if not attempt.left:
                return
            attempt.number += 1
            sender = self._membership.sender()
            codes = await self._send(attempt, sender, deadline)
            is_stale = self._take_codes(attempt, codes)
            if not attempt.left:
                return
            if is_stale:
                await self._membership.after_heartbeat(deadline)
            await asyncio.sleep(min(RETRY_S * 2.0 ** min(attempt.number - 1, 10), RETRY_MAX_S))

    def _leave_out_lost(self, attempt: _Attempt) -> None:
        for state in [state for state in attempt.left if not self._membership.owns(state)]:
            del attempt.left[state]
            attempt.error = self._membership.lost(state)

    async def _send(self, attempt: _Attempt, sender: Sender, deadline: float) -> dict[PartitionState, ErrorCode]:
        """Send one request. Returns the answer for each partition."""
        asked = list(attempt.left.items())
        partitions = [
            OffsetCommitPartition(*state.key, offset.offset, offset.leader_epoch, offset.metadata) for state, offset in asked
        ]
        request = OffsetCommitRequest(self._group_id, sender.epoch, sender.member_id, sender.instance_id, partitions)
        try:
            response = await self._coordinator.ask(OFFSET_COMMIT, request, self._timeout_ms(deadline))
        except StrandlineError as e:
            attempt.last = e
            code = getattr(e, "code", None) or (ErrorCode.NETWORK_EXCEPTION if e.retriable else ErrorCode.UNKNOWN_SERVER_ERROR)
            return {state: code for state, _ in asked}
        assert isinstance(response, OffsetCommitResponse)
        codes = {(p.topic_id, p.partition): to_code(p.error_code) for p in response.partitions}
        return {state: codes.get(state.key, ErrorCode.UNKNOWN_SERVER_ERROR) for state, _ in asked}

    def _take_codes(self, attempt: _Attempt, codes: Mapping[PartitionState, ErrorCode]) -> bool:
        """Settle the partitions whose answer is final. Returns whether the member epoch of the request was out of date."""
        is_stale = False
        for state, code in codes.items():
            self._coordinator.on_error(code)
            if code == ErrorCode.NONE:
                self.last[state.key] = attempt.left.pop(state)
            elif code == ErrorCode.STALE_MEMBER_EPOCH:
                is_stale = True
            elif code in _LOST:
                del attempt.left[state]
                attempt.error = self._membership.lost(None)
            elif code in _NOT_RETRIED or not ERRORS[code].retriable:
                del attempt.left[state]
                attempt.error = self._rejected(state, code, attempt)
            else:
                attempt.last = self._rejected(state, code, attempt)
        return is_stale

    @staticmethod
    def _rejected(state: PartitionState, code: ErrorCode, attempt: _Attempt) -> RequestFailed:
        text = str(attempt.last) if attempt.last is not None and getattr(attempt.last, "code", None) == code else describe(code)
        return request_failed(text, topic=state.tp.topic, partition=state.tp.partition, api="OffsetCommit", code=code)

    # -- looking up ---------------------------------------------------------------------------------------------------

    async def fetch(
        self, keys: Iterable[TopicIdPartition], deadline: float, *, as_member: bool = True
    ) -> dict[TopicIdPartition, OffsetAndMetadata]:
        """The committed offsets of these partitions; partitions without one are left out. `as_member`: send member id and epoch,
        so that the coordinator rejects the request if the member was removed or has another epoch.

        RequestTimeout at the deadline (on the loop's clock); RequestFailed; CommitFailed if the consumer is no longer a
        member."""
        asked = list(keys)
        wanted = dict.fromkeys(asked)
        found: dict[TopicIdPartition, OffsetAndMetadata] = {}
        attempt, loop = _Attempt({}), asyncio.get_running_loop()
        started = loop.time()
        while wanted:
            if loop.time() >= deadline:
                raise attempt.timed_out(loop.time() - started, "committed offsets were not answered")
            attempt.number += 1
            sender = self._membership.sender() if as_member else Sender()
            is_stale = await self._fetch(sender, wanted, found, attempt, deadline)
            if wanted and is_stale:
                await self._membership.after_heartbeat(deadline)
            if wanted:
                pause_s = min(RETRY_S * 2.0 ** min(attempt.number - 1, 10), RETRY_MAX_S)
                await asyncio.sleep(max(0.0, min(pause_s, deadline - loop.time())))
        for key in asked:
            self.last.pop(key, None)
        self.last.update(found)
        return found

    async def _fetch(
        self,
        sender: Sender,
        wanted: dict[TopicIdPartition, None],
        found: dict[TopicIdPartition, OffsetAndMetadata],
        attempt: _Attempt,
        deadline: float,
    ) -> bool:
        """Ask once. Take the partitions that were answered out of `wanted`, and put their committed offsets into `found`. Returns
        whether the member epoch was out of date."""
        asked = OffsetFetchGroup(self._group_id, sender.member_id or None, sender.epoch, by_topic_id(wanted))
        request = OffsetFetchRequest([asked], require_stable=True)  # Kafka's consumers wait for open transactions, too (KIP-447).
        try:
            response = await self._coordinator.ask(OFFSET_FETCH, request, self._timeout_ms(deadline))
        except StrandlineError as e:
            attempt.last = e
            return self._on_fetch_error(getattr(e, "code", None), e)
        assert isinstance(response, OffsetFetchResponse)
        group = response.groups[0]
        if group.error_code:
            code = to_code(group.error_code)
            self._coordinator.on_error(code)
            attempt.last = request_failed(describe(code, group.error_message), api="OffsetFetch", code=code)
            return self._on_fetch_error(code, attempt.last)
        for answer in group.partitions:
            key, code = (answer.topic_id, answer.partition), to_code(answer.error_code)
            if code == ErrorCode.NONE or code in _NOT_RETRIED:
                wanted.pop(key, None)
                if code == ErrorCode.NONE and answer.committed_offset >= 0:
                    found[key] = OffsetAndMetadata(answer.committed_offset, answer.metadata or "", answer.committed_leader_epoch)
                continue
            attempt.last = request_failed(describe(code), partition=answer.partition, api="OffsetFetch", code=code)
            if not ERRORS[code].retriable:
                raise attempt.last
        return False

    def _on_fetch_error(self, code: ErrorCode | None, error: StrandlineError) -> bool:
        if code == ErrorCode.STALE_MEMBER_EPOCH:
            return True
        if code in _LOST:
            raise self._membership.lost(None)
        if not error.retriable:
            raise error
        return False

    def _timeout_ms(self, deadline: float) -> float:
        left_ms = (deadline - asyncio.get_running_loop().time()) * 1000
        return max(1.0, min(left_ms, ANSWER_TIMEOUT_MS, self._options.request_timeout_ms))


class _Attempt:
    """The progress of one call: the offsets that are not stored yet, and the errors."""

    def __init__(self, left: dict[PartitionState, OffsetAndMetadata]) -> None:
        self.left = left
        self.number = 0
        self.error: StrandlineError | None = None
        """Why the offset of a partition will never be stored."""
        self.last: StrandlineError | None = None
        """Why the last attempt failed."""

    def timed_out(self, elapsed_s: float, what: str = "the offsets may not be committed") -> RequestTimeout:
        reason = "" if self.last is None else f": {self.last}"
        return RequestTimeout(f"{what}{reason}", attempts=self.number, elapsed_ms=elapsed_s * 1000)
