"""The producer id (InitProducerId, KIP-98): requested from any broker, in the background, until there is one.

All partitions of a producer begin with the same id and epoch. A partition bumps its own epoch when it must (partition_queue.py).
A partition whose epochs are used up gets a new id.

A named producer requests its id once: id and epoch identify the attempt, and another request would be another attempt. If the
controllers reject it, the producer can send nothing.

A transactional producer requests its id once, too, from the coordinator of its transactional id, which ends the transaction of
an earlier producer first. Each transaction that ends then gives it the next epoch (`renew`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from strandline.client.cluster.cluster import Cluster
from strandline.client.cluster.coordinator import ANSWER_TIMEOUT_MS, CoordinatorConnection
from strandline.client.errors import (
    AuthenticationFailed,
    AuthorizationFailed,
    ClientError,
    ProducerFenced,
    RequestFailed,
    RequestTimeout,
    copy_of,
    describe,
    request_failed,
)
from strandline.client.options import ProducerOptions
from strandline.protocol.apis import INIT_PRODUCER_ID
from strandline.protocol.errors import ERRORS, ErrorCode, StrandlineError, to_code
from strandline.protocol.loggers import get_logger
from strandline.protocol.messages.data import InitProducerIdRequest, InitProducerIdResponse
from strandline.protocol.messages.groups import KEY_TYPE_TRANSACTION
from strandline.protocol.producer_names import is_named, work_epoch_of

logger = get_logger(__name__)

RETRY_S = 0.05
RETRY_MAX_S = 1.0


class ProducerIdentity:
    """Requests the id and epoch of one producer, and keeps them."""

    def __init__(
        self,
        cluster: Cluster,
        options: ProducerOptions,
        on_known: Callable[[], None],
        on_refused: Callable[[ClientError], None],
        on_denied: Callable[[ClientError], None],
    ) -> None:
        """`on_known`: called when there is an id. `on_refused`: called when a named or transactional producer is rejected for
        good. `on_denied`: called when a plain producer gets no id, because its principal lacks a right or cannot authenticate;
        the next record requests an id again."""
        self.coordinator: CoordinatorConnection | None = None
        if options.transactional_id is not None:
            connect = cluster.connections.state_at
            self.coordinator = CoordinatorConnection(cluster, options.transactional_id, connect, KEY_TYPE_TRANSACTION)
        self.known = False
        self.producer_id = -1
        self.producer_epoch = -1
        self.note: bytes | None = None
        """The note that the first attempt of a named producer's work epoch left."""
        self.last_error: StrandlineError | None = None
        self.refused: ClientError | None = None
        """Why the cluster rejects this named or transactional producer."""
        self._cluster = cluster
        self._options = options
        self._on_known = on_known
        self._on_refused = on_refused
        self._on_denied = on_denied
        self._settled = asyncio.Event()
        """Set when the id is known or rejected."""
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def request(self) -> None:
        """Request an id, unless a request is in progress."""
        if self.refused is None and (self._task is None or self._task.done()):
            self.known = False
            self._task = asyncio.get_running_loop().create_task(self._ask())
            self._task.add_done_callback(self._on_done)

    async def wait(self, timeout_ms: float) -> None:
        """Wait until there is an id. Raises the rejection, or RequestTimeout after `timeout_ms`."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._settled.wait()
        except TimeoutError:
            text = f"no producer id: {self.last_error}" if self.last_error else "no producer id"
            raise RequestTimeout(text, api="InitProducerId", elapsed_ms=timeout_ms) from None
        if self.refused is not None:
            raise copy_of(self.refused)

    def renew(self, producer_id: int, producer_epoch: int) -> None:
        """A transaction has ended: take the producer id and epoch of the next one (TV2 of KIP-890)."""
        self.producer_id, self.producer_epoch = producer_id, producer_epoch

    def _on_done(self, task: asyncio.Task[None]) -> None:
        """If a program has cancelled the task, for example with all tasks of the loop, request the id again."""
        if task.cancelled() and not self._closed and not task.get_loop().is_closed():
            self.request()

    async def fence_older_epochs(self, timeout_ms: float) -> None:
        """Ask the controllers to fence older epochs of the name. A leader rejects the batches of these epochs once its metadata
        contains that (see `ProducerQuestions`). Raises the rejection, or RequestTimeout after `timeout_ms`."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._decide(self._request(self.producer_epoch))
        except TimeoutError:
            error, self.last_error = self.last_error, None
            text = "older epochs may still write" + (f": {error}" if error else "")
            raise RequestTimeout(text, api="InitProducerId", elapsed_ms=timeout_ms) from None
        if self.refused is not None:
            raise copy_of(self.refused)

    def _request(self, producer_epoch: int = -1) -> InitProducerIdRequest:
        options = self._options
        return InitProducerIdRequest(
            transactional_id=options.transactional_id,
            transaction_timeout_ms=options.transaction_timeout_ms,
            name=options.producer_name,
            work_epoch=options.producer_work_epoch,
            note=options.producer_note,
            producer_epoch=producer_epoch,
        )

    async def _ask(self) -> None:
        answer = await self._decide(self._request())
        if answer is not None:
            self._take(answer)

    async def _decide(self, request: InitProducerIdRequest) -> InitProducerIdResponse | None:
        """Send the request until it is answered, without a time limit. None if it was rejected, or the client was closed."""
        delay_s = RETRY_S
        while not self._cluster.closed:
            try:
                answer = await self._send(request)
                if not answer.error_code:
                    self.last_error = None
                    return answer
                if self._on_error(to_code(answer.error_code), answer.error_message):
                    return None
            except StrandlineError as e:
                self.last_error = e
                if isinstance(e, (AuthenticationFailed, AuthorizationFailed)) and self._is_denied(e):
                    return None
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, RETRY_MAX_S)
        return None

    async def _send(self, request: InitProducerIdRequest) -> InitProducerIdResponse:
        timeout_ms, coordinator = self._options.request_timeout_ms, self.coordinator
        if coordinator is None:
            answer = await self._cluster.any_broker.ask_any(INIT_PRODUCER_ID, request, timeout_ms)
        else:
            answer = await coordinator.ask(INIT_PRODUCER_ID, request, min(timeout_ms, ANSWER_TIMEOUT_MS))
        assert isinstance(answer, InitProducerIdResponse)
        if coordinator is not None:
            coordinator.on_error(to_code(answer.error_code))
        return answer

    def _take(self, answer: InitProducerIdResponse) -> None:
        producer_id, self.note = answer.producer_id, answer.note
        name, work_epoch = self._options.producer_name, self._options.producer_work_epoch
        if name is not None and not (is_named(producer_id) and work_epoch_of(producer_id) == work_epoch):
            return self._refuse(RequestFailed("the broker does not support named producers", api="InitProducerId"))
        self.producer_id, self.producer_epoch = producer_id, answer.producer_epoch
        self.known = True
        self._settled.set()
        return self._on_known()

    def _on_error(self, code: ErrorCode, message: str | None) -> bool:
        """Apply an error. Returns whether to stop sending the request: the producer is rejected, or its principal lacks a
        right."""
        make = ProducerFenced if code == ErrorCode.PRODUCER_FENCED else request_failed
        self.last_error = error = make(describe(code, message), api="InitProducerId", code=code)
        is_final = not ERRORS[code].retriable and code != ErrorCode.UNKNOWN_SERVER_ERROR
        if is_final:
            logger.warning("producer.id_refused", reason=str(error))
        if is_final and (self._options.producer_name is not None or self._options.transactional_id is not None):
            self._refuse(error)
            return True
        return isinstance(error, AuthorizationFailed) and self._is_denied(error)

    def _is_denied(self, error: AuthenticationFailed | AuthorizationFailed) -> bool:
        """The principal lacks a right, or its authentication was rejected. Returns whether to stop sending the request. A plain
        producer fails its waiting records, and requests an id again for the next record. A named or transactional producer is
        rejected for good, unless it has an id and only its authentication was rejected, which may succeed later."""
        if self._options.producer_name is None and self._options.transactional_id is None:
            self._on_denied(error)
            return True
        if self.known and isinstance(error, AuthenticationFailed):
            return False
        self._refuse(error)
        return True

    def _refuse(self, error: ClientError) -> None:
        self.refused = error
        self._settled.set()
        self._on_refused(error)

    async def close(self) -> None:
        """Cancel the request for an id."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
