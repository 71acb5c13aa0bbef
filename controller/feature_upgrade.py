"""Answers UpdateFeatures: asks the other voters, and the brokers whose registration has no range, which levels they support, and
then submits the decision.

The request is the handshake (ApiVersions), which every process of this and of older versions answers. All nodes are asked at
once, each with the time limits of a handshake. If a node does not answer, the upgrade is refused, because the node may have an
older version.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from strandline.controller.controller import Controller
from strandline.controller.feature_control import NodeLevels, needs_answers, update_features
from strandline.controller.metadata.features import Levels, levels_of
from strandline.controller.metadata.image import BrokerRegistration
from strandline.controller.metadata.voters import Voter
from strandline.protocol.errors import BrokerError, PeerError
from strandline.protocol.messages.admin import ApiVersionsResponse, UpdateFeaturesRequest, UpdateFeaturesResponse
from strandline.protocol.rpc.peer_handshakes import handshake
from strandline.protocol.rpc.server import ServerRequest
from strandline.protocol.security.client_security import NO_SECURITY, ClientSecurity, SecurityOf, without_security


class _Place(NamedTuple):
    """A node and its address."""

    id: int
    host: str
    port: int


class FeatureUpgrades:
    """The handler of UpdateFeatures on one controller."""

    def __init__(
        self,
        controller: Controller,
        voters: Sequence[Voter],
        cluster_id: str,
        to_controllers: ClientSecurity = NO_SECURITY,
        to_listener: SecurityOf = without_security,
    ) -> None:
        """`to_controllers`, `to_listener`: how to connect to controllers, and to a broker's listener of a name."""
        self._controller = controller
        self._to_controllers = to_controllers
        self._to_listener = to_listener
        self._others = [voter for voter in voters if voter.id != controller.node_id]
        self._cluster_id = cluster_id

    async def handle(self, request: ServerRequest) -> None:
        """Answer one request. Raises BrokerError NOT_CONTROLLER if this controller is not active."""
        controller, body = self._controller, request.body
        assert isinstance(body, UpdateFeaturesRequest)
        controller.require_active()
        answers = await self._ask() if needs_answers(controller.image, controller.levels, body) else NodeLevels()
        voter_ids = [voter.id for voter in self._others]

        def on_reply(reply: UpdateFeaturesResponse | BrokerError) -> None:
            if isinstance(reply, BrokerError):
                request.refuse(reply.code, reply.message)
            else:
                request.reply(reply)

        # The image may be newer than the one whose nodes were asked. The decision checks the answers against the newer one.
        controller.submit(lambda _: update_features(controller.image, controller.levels, voter_ids, answers, body), on_reply)

    async def _ask(self) -> NodeLevels:
        brokers = [b for _, b in sorted(self._controller.image.brokers.items()) if not b.features]
        voters, found = await asyncio.gather(
            asyncio.gather(*map(self._ask_voter, self._others)), asyncio.gather(*map(self._ask_broker, brokers))
        )
        return NodeLevels(
            {voter.id: levels for voter, levels in zip(self._others, voters, strict=True)},
            {broker.incarnation_id: levels for broker, levels in zip(brokers, found, strict=True)},
        )

    async def _ask_voter(self, voter: Voter) -> Levels | str:
        answer = await self._handshake(_Place(*voter), self._to_controllers)
        if isinstance(answer, str):
            return answer
        if (answer.role, answer.node_id, answer.cluster_id) != ("controller", voter.id, self._cluster_id):
            return f"another node answers at {voter.host}:{voter.port}"
        return levels_of(answer.supported_features)

    async def _ask_broker(self, broker: BrokerRegistration) -> Levels | str:
        endpoint = broker.endpoint()
        if endpoint is None:
            return "it has registered no address"
        try:
            security = self._to_listener(endpoint.name)
        except BrokerError as e:
            return e.message or str(e)
        answer = await self._handshake(_Place(broker.broker_id, endpoint.host, endpoint.port), security)
        if isinstance(answer, str):
            return answer
        if answer.incarnation_id != broker.incarnation_id:
            return f"another process answers at {endpoint.host}:{endpoint.port}"
        return levels_of(answer.supported_features)

    async def _handshake(self, place: _Place, security: ClientSecurity) -> ApiVersionsResponse | str:
        try:
            return await handshake(place, f"controller-{self._controller.node_id}", security)
        except BrokerError as e:
            return f"{e.message or e}; start it and retry"
        except PeerError as e:
            return f"{place.host}:{place.port}: {e}"
