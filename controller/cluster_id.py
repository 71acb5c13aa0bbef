"""How controllers that were given no cluster id agree on one, at the first start of a cluster.

A controller whose data directory or configuration has an id needs none of this. The others ask all other voters who they
are (the handshake says it, also while a voter is undecided) and follow three rules:

- A voter **adopts** the id of any voter that has one.
- Only the voter with the lowest node id **makes** one, and only when every other voter has told this very process that
  it has none yet.
- The id is in meta.properties, durably, before it is told to anyone.

So there is never a second id. An id comes into being in one place, and its maker asked everybody first: had there been
one before, each voter that had taken part in the agreement would still have it (rule three), and would have said so. A
maker that dies before the id is durable told nobody; one that dies afterwards finds it in its directory. A maker whose
volume was lost is a voter without an id like any other, and adopts. And if all voters stay up they agree: the lowest hears
from all, and then all hear from it.

The price: the very first start of a cluster needs every controller, once. What is not covered: volumes that are lost while
the agreement is still under way, and ids that somebody configures on some of the voters by hand. Both can make two ids;
a voter that sees two refuses to start and says who has which, and voters of different clusters never answer each other.
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
from strandline.storage.checkpoints import uuid_to_text

logger = get_logger(__name__)


class Agreement:
    """The decision of one voter without an id. `None` for an id: the voter has none yet."""

    def __init__(self, node_id: int, voter_ids: Sequence[int]) -> None:
        self.node_id = node_id
        self._others = sorted(voter_id for voter_id in voter_ids if voter_id != node_id)
        self.answers: dict[int, str | None] = {}
        """What each voter said last. Only what was heard by this process: an earlier one's knowledge is not kept."""

    def on_answer(self, voter_id: int, cluster_id: str | None) -> None:
        if voter_id in self._others:
            self.answers[voter_id] = cluster_id
            refuse_two_clusters(self.answers)

    @property
    def adopted(self) -> tuple[str, int] | None:
        """An id that exists already, and a voter that has it."""
        return next(
            ((cluster_id, voter_id) for voter_id, cluster_id in sorted(self.answers.items()) if cluster_id is not None), None
        )

    @property
    def may_make(self) -> bool:
        return all(self.node_id < other and other in self.answers and self.answers[other] is None for other in self._others)

    @property
    def is_decided(self) -> bool:
        return self.adopted is not None or self.may_make


class Agreed(NamedTuple):
    cluster_id: str
    from_node_id: int | None
    """The voter that has it already; None: it was made here, and nobody else has heard of it."""


async def agree_on_cluster_id(node_id: int, voters: Sequence[Voter], random: Random, timeout_ms: int) -> Agreed:
    """The cluster's id, which the caller makes durable before it tells it to anyone. Waits for as long as it takes, but
    raises UsageError when after `timeout_ms` the name of a voter still leads nowhere: that is a wrong address, as a rule."""
    agreement = Agreement(node_id, [voter.id for voter in voters])

    def on_answer(voter_id: int, answer: ApiVersionsResponse) -> str | None:
        agreement.on_answer(voter_id, answer.cluster_id)
        return "it has no cluster id yet either" if answer.cluster_id is None else None

    others = [voter for voter in voters if voter.id != node_id]
    handshakes = PeerHandshakes(
        others, client_id=f"controller-{node_id}", role="controller", purpose="the cluster id", on_answer=on_answer, ask_all=True
    )
    while not await handshakes.run(lambda: agreement.is_decided, timeout_ms):
        if handshakes.unresolvable:
            raise UsageError(f"the controllers could not agree on a cluster id in {timeout_ms / 1000:g} s: {handshakes.reasons}")
    return Agreed(*agreement.adopted) if agreement.adopted is not None else Agreed(uuid_to_text(new_uuid(random)), None)


def log_agreed(node_id: int, voters: Sequence[Voter], agreed: Agreed) -> None:
    """To be said when it is on the disk."""
    if agreed.from_node_id is None:
        voter_ids = [voter.id for voter in voters]
        logger.info("cluster_id.made", node_id=node_id, cluster_id=agreed.cluster_id, voters=voter_ids)
    else:
        logger.info("cluster_id.adopted", node_id=node_id, cluster_id=agreed.cluster_id, from_node_id=agreed.from_node_id)
