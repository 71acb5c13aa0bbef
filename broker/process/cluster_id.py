"""A broker's cluster id, for which the broker asks the controllers before it opens its logs.

A broker that has no `cluster.id`, neither in its data directory nor in its configuration, adopts the one that a controller
answers. A broker that has one asks, too: if it finds no controller, or if the controllers belong to another cluster, its start
fails with an error that names the address and the reason. The answer also has the level of the metadata. If the broker does not
support this level, its start fails, too.

After an outage of all nodes, brokers may be started before controllers, and a name may not resolve yet. So the broker asks until
`initial.broker.registration.timeout.ms` is over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from strandline.controller.metadata.features import SUPPORTED, Levels, check_level
from strandline.controller.metadata.voters import Voter
from strandline.protocol.errors import UsageError
from strandline.protocol.feature_names import METADATA_VERSION
from strandline.protocol.loggers import get_logger
from strandline.protocol.messages.admin import ApiVersionsResponse
from strandline.protocol.rpc.peer_handshakes import PeerHandshakes, refuse_two_clusters
from strandline.protocol.security.client_security import NO_SECURITY, ClientSecurity

logger = get_logger(__name__)


async def find_cluster(
    broker_id: int,
    voters: Sequence[Voter],
    known: str | None,
    timeout_ms: int,
    levels: Levels = SUPPORTED,
    security: ClientSecurity = NO_SECURITY,
) -> str:
    """The cluster id of the controllers. `known` is the broker's own cluster id, if it has one.

    Raises `UsageError` if the controllers belong to another cluster or to two clusters, if none answers in time, or if a
    controller answers that the metadata has a level that is not in `levels`."""
    cluster_ids: dict[int, str] = {}

    def on_answer(voter_id: int, answer: ApiVersionsResponse) -> str | None:
        if answer.cluster_id is None:
            return "it has no cluster id yet"
        cluster_ids[voter_id] = answer.cluster_id
        _refuse_another(cluster_ids, known)
        for feature in answer.finalized_features:
            if feature.name == METADATA_VERSION:
                check_level(feature.max_version_level, levels)
        return None

    handshakes = PeerHandshakes(
        voters,
        client_id=f"broker-{broker_id}",
        role="controller",
        purpose="a controller",
        on_answer=on_answer,
        security=security,
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
                f"controller {voter_id} belongs to cluster {cluster_id!r}, and this broker to another cluster, {known!r}: "
                "check controller.quorum.voters and the data directory"
            )
