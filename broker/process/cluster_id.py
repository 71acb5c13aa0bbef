"""Which cluster a broker belongs to, asked from the controllers before it relies on it.

A broker without a `cluster.id`, neither in its data directory nor configured, takes the one that a controller tells. One
that knows its cluster asks all the same, before it opens its logs: that the controllers can be found at all, and that they are
of this very cluster, is said here in one sentence with the address and the reason.

After an outage of everything, brokers may be started before controllers, and a name may not resolve yet: the controllers
are asked until `initial.broker.registration.timeout.ms` is over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from strandline.controller.metadata.voters import Voter
from strandline.protocol.errors import UsageError
from strandline.protocol.loggers import get_logger
from strandline.protocol.messages.admin import ApiVersionsResponse
from strandline.protocol.rpc.peer_handshakes import PeerHandshakes, refuse_two_clusters

logger = get_logger(__name__)


async def find_cluster(broker_id: int, voters: Sequence[Voter], known: str | None, timeout_ms: int) -> str:
    """The id of the cluster of the controllers, `known` if the broker knows it. UsageError when it is another one, when two
    controllers belong to two clusters, or when no controller could be asked in time."""
    cluster_ids: dict[int, str] = {}

    def on_answer(voter_id: int, answer: ApiVersionsResponse) -> str | None:
        if answer.cluster_id is None:
            return "it has no cluster id yet"
        cluster_ids[voter_id] = answer.cluster_id
        _refuse_another(cluster_ids, known)
        return None

    handshakes = PeerHandshakes(
        voters, client_id=f"broker-{broker_id}", role="controller", purpose="a controller", on_answer=on_answer
    )
    if not await handshakes.run(lambda: bool(cluster_ids), timeout_ms):
        raise UsageError(f"the broker found no controller in {timeout_ms / 1000:g} s: {handshakes.reasons}")
    voter_id, cluster_id = next(iter(cluster_ids.items()))
    if known is None:
        logger.info("cluster_id.adopted", broker_id=broker_id, cluster_id=cluster_id, from_node_id=voter_id)
    return cluster_id


def _refuse_another(cluster_ids: Mapping[int, str], known: str | None) -> None:
    refuse_two_clusters(cluster_ids)
    for voter_id, cluster_id in cluster_ids.items():
        if known is not None and cluster_id != known:
            raise UsageError(
                f"controller {voter_id} is of cluster {cluster_id!r}, another cluster than {known!r}, that of this broker: "
                "check controller.quorum.voters and the data directory"
            )
