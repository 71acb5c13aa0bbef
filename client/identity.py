"""The producer id: asked from any broker, in the background, until there is one.

All partitions of a producer begin with the same id and epoch; a partition bumps its own epoch when it must
(partition_queue.py), and one whose epochs are used up gets a new id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from strandline.client.cluster import Cluster
from strandline.client.errors import RequestFailed, describe
from strandline.client.options import ProducerOptions
from strandline.protocol.apis import INIT_PRODUCER_ID
from strandline.protocol.errors import ERRORS, ErrorCode, StrandlineError, to_code
from strandline.protocol.loggers import get_logger
from strandline.protocol.messages.data import InitProducerIdRequest, InitProducerIdResponse

log = get_logger(__name__)

RETRY_S = 0.05
RETRY_MAX_S = 1.0


class ProducerIdentity:
    def __init__(self, cluster: Cluster, options: ProducerOptions, on_known: Callable[[], None]) -> None:
        self.known = False
        self.producer_id = -1
        self.producer_epoch = -1
        self.last_error: StrandlineError | None = None
        self._cluster = cluster
        self._options = options
        self._on_known = on_known
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def request(self) -> None:
        """Get an identity, unless that is under way."""
        if self._task is None or self._task.done():
            self.known = False
            self._task = asyncio.get_running_loop().create_task(self._ask())
            self._task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        """Cancelled by somebody who cancels every task it finds: begin again."""
        if task.cancelled() and not self._closed and not task.get_loop().is_closed():
            self.request()

    async def _ask(self) -> None:
        delay_s = RETRY_S
        while not self._cluster.closed:
            try:
                answer = await self._cluster.ask_any(INIT_PRODUCER_ID, InitProducerIdRequest(), self._options.request_timeout_ms)
                assert isinstance(answer, InitProducerIdResponse)
                if not answer.error_code:
                    break
                code = to_code(answer.error_code)
                self.last_error = RequestFailed(describe(code), api="InitProducerId", code=code)
                if not ERRORS[code].retriable and code != ErrorCode.UNKNOWN_SERVER_ERROR:
                    log.warning("producer.no_producer_id", reason=str(self.last_error))
            except StrandlineError as e:
                self.last_error = e
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, RETRY_MAX_S)
        else:
            return
        self.producer_id, self.producer_epoch = answer.producer_id, answer.producer_epoch
        self.known, self.last_error = True, None
        self._on_known()

    async def close(self) -> None:
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
