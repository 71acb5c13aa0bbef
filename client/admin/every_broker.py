"""Sends a request to every broker of the cluster, each of which lists the groups or ids that it alone coordinates.

A broker that does not answer does not delay the others; only the items that it alone can list are missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from strandline.client.cluster.cluster import Cluster
from strandline.protocol.errors import StrandlineError, UsageError

RETRY_S = 0.05
UNREACHABLE_S = 3.0
"""Seconds for which requests to a broker that cannot be reached are repeated. If it is gone, other brokers coordinate its
groups."""

Item = TypeVar("Item")
AskBroker = Callable[[int, float], Awaitable[tuple[list[Item], StrandlineError | None]]]
"""Asks the broker with this id, within a time limit in ms. Returns the items that it lists, and an error if some may be missing,
for example because the broker is still loading."""


async def ask_every_broker(
    cluster: Cluster, ask: AskBroker[Item], timeout_ms: float
) -> tuple[list[Item], dict[int, StrandlineError]]:
    """All items, and by broker id the error because of which some are missing. After a retriable error, the request is repeated
    for `timeout_ms`. A UsageError is raised, because every broker would cause it."""
    deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
    await cluster.metadata.refresh(timeout_ms)
    brokers = sorted(cluster.cache.brokers)
    answers = await asyncio.gather(*(_ask_until(ask, broker_id, deadline) for broker_id in brokers))
    errors = {broker_id: error for broker_id, (_, error) in zip(brokers, answers, strict=True) if error is not None}
    return [item for found, _ in answers for item in found], errors


async def _ask_until(ask: AskBroker[Item], broker_id: int, deadline: float) -> tuple[list[Item], StrandlineError | None]:
    now = asyncio.get_running_loop().time
    found: list[Item] = []
    reached_by = min(deadline, now() + UNREACHABLE_S)
    while True:
        error: StrandlineError | None
        try:
            found, error = await ask(broker_id, max(1.0, (reached_by - now()) * 1000))
            reached_by = deadline
        except UsageError:
            raise
        except StrandlineError as e:
            error = e
        if error is None or not error.retriable or now() + RETRY_S >= reached_by:
            return found, error
        await asyncio.sleep(RETRY_S)
