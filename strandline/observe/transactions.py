"""The metrics of a broker's transaction coordinator; none before its logs are open."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from strandline.broker.transactions.states import State
from strandline.observe.reading import Reading

if TYPE_CHECKING:
    from strandline.broker.process.server import BrokerServer

_WRITTEN = [state for state in State if state not in (State.DEAD, State.PREPARE_EPOCH_FENCE)]


def transactions(server: BrokerServer) -> Iterator[Reading]:
    opened = server.opened
    if opened is None:
        return
    coordinator = opened.transactions
    for role, number in coordinator.partitions_by_state().items():
        yield Reading("strandline_transaction_partitions", number, (role,))
    counts = Counter(each.state for active in coordinator.loaded_shards() for each in active.shard.transactions.values())
    for state in _WRITTEN:
        yield Reading("strandline_transactional_ids", counts[state], (state.title,))
    metrics = coordinator.metrics
    for how, number in metrics.ended.items():
        yield Reading("strandline_transactions_ended_total", number, (how,))
    yield Reading("strandline_transactions_awaiting_markers", len(coordinator.markers))
    yield Reading("strandline_transaction_markers_without_leader", coordinator.markers.without_leader)
    yield Reading("strandline_transaction_markers_total", metrics.markers_written)
    yield Reading("strandline_transactions_awaiting_completion", coordinator.retried_completions)
    yield Reading("strandline_transaction_load_seconds", metrics.load)
    yield Reading("strandline_transaction_append_seconds", metrics.append)
    yield Reading("strandline_transaction_commit_wait_seconds", coordinator.commit_wait)
    yield Reading("strandline_transaction_completion_seconds", metrics.completion)
