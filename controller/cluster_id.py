"""How controllers without a configured cluster id agree on one, at the first start of a cluster.

A controller whose data directory or configuration has an id takes no part in this. The others ask all other voters for their
id (in the handshake, which a voter answers before it has one) and follow three rules:

- A voter **adopts** the id of any voter that has one.
- Only the voter with the lowest node id **creates** one, and only after every other voter has answered this process that it
  has none yet.
- A voter writes the id to meta.properties, durably, before it sends it to any other.

So there is never a second id. Only one voter creates an id, and it asks all others first: if there had been an id before, each
voter of that agreement would still have it (rule three) and would have answered with it. If the creator dies before the id is
durable, it has sent the id to no voter; if it dies afterwards, it finds the id in its directory. If its volume is lost, it is a
voter without an id like any other, and adopts. And if all voters stay up, they agree: the one with the lowest id gets the answers
of all others, and then all others get the id from it.

The price: the first start of a cluster needs every controller once. Two cases are not covered: a volume that is lost during the
agreement, and ids that are configured by hand on only some of the voters. Both can lead to two ids. A voter that sees two ids
does not start, and reports which voter has which; and voters of different clusters reject each other's requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from strandline.controller.metadata.voters import Voter
from strandline.protocol.doors import new_uuid
from strandline.protocol.errors import UsageError
from strandline.protocol.loggers import get_logger
from strandline.protocol.messages.admin import ApiVersionsResponse
from strandline.protocol.rpc.peer_handshakes import PeerHandshakes, refuse_two_clusters
from strandline.protocol.security.client_security import NO_SECURITY, ClientSecurity
from strandline.storage.checkpoints import uuid_to_text

logger = get_logger(__name__)


class Agreement:
    """The decision of one voter without an id. `None` for an id: the voter has none yet."""

    def __init__(self, node_id: int, voter_ids: Sequence[int]) -> None:
        self.node_id = node_id
        self._others = sorted(voter_id for voter_id in voter_ids if voter_id != node_id)
        self.answers: dict[int, str | None] = {}
        """The last answer of each voter to this process. Answers to an earlier process are not kept."""

    def on_answer(self, voter_id: int, cluster_id: str | None) -> None:
        """Take the id of another voter. Raises UsageError if two voters belong to different clusters."""
        if voter_id in self._others:
            self.answers[voter_id] = cluster_id
            refuse_two_clusters(self.answers)

    @property
    def adopted(self) -> tuple[str, int] | None:
        """The id that another voter already has, and that voter's node id; None if no answer named one."""
        return next(
            ((cluster_id, voter_id) for voter_id, cluster_id in sorted(self.answers.items()) if cluster_id is not None), None
        )

    @property
    def may_create(self) -> bool:
        """Whether this voter may create the id: it has the lowest node id, and every other voter has answered that it has
        none."""
        return all(self.node_id < other and other in self.answers and self.answers[other] is None for other in self._others)

    @property
    def is_decided(self) -> bool:
        return self.adopted is not None or self.may_create


class Agreed(NamedTuple):
    """The id on which the voters have agreed."""

    cluster_id: str
    from_node_id: int | None
    """The voter that had it already; None if this process has created it, and no other voter has it yet."""


async def agree_on_cluster_id(
    node_id: int, voters: Sequence[Voter], random: Random, timeout_ms: int, security: ClientSecurity = NO_SECURITY
) -> Agreed:
    """The cluster's id, which the caller writes to the disk before it sends it to any other node.

    Waits without limit for voters that do not answer. Raises UsageError if after `timeout_ms` the host name of a voter is still
    unknown, because that is usually a wrong address; and if two voters have different ids."""
    agreement = Agreement(node_id, [voter.id for voter in voters])

    def on_answer(voter_id: int, answer: ApiVersionsResponse) -> str | None:
        agreement.on_answer(voter_id, answer.cluster_id)
        return "it has no cluster id yet either" if answer.cluster_id is None else None

    others = [voter for voter in voters if voter.id != node_id]
    handshakes = PeerHandshakes(
        others,
        client_id=f"controller-{node_id}",
        role="controller",
        purpose="the cluster id",
        on_answer=on_answer,
        ask_all=True,
        security=security,
    )
    while not await handshakes.run(lambda: agreement.is_decided, timeout_ms):
        if handshakes.unresolvable:
            raise UsageError(f"the controllers could not agree on a cluster id in {timeout_ms / 1000:g} s: {handshakes.reasons}")
    return Agreed(*agreement.adopted) if agreement.adopted is not None else Agreed(uuid_to_text(new_uuid(random)), None)


def log_agreed(node_id: int, voters: Sequence[Voter], agreed: Agreed) -> None:
    """Call this after the id is on the disk."""
    if agreed.from_node_id is None:
        voter_ids = [voter.id for voter in voters]
        logger.info("cluster_id.created", node_id=node_id, cluster_id=agreed.cluster_id, voters=voter_ids)
    else:
        logger.info("cluster_id.adopted", node_id=node_id, cluster_id=agreed.cluster_id, from_node_id=agreed.from_node_id)
