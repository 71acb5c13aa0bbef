"""Puts two guards before the handlers of a broker: for the sender's rights, and for the owners of members and producer ids."""

from __future__ import annotations

from collections.abc import Mapping

from strandline.broker.security.producer_owners import ProducerOwners
from strandline.broker.security.session_owners import FindStaticMember, SessionOwners
from strandline.controller.metadata.security.access import Rights
from strandline.controller.metadata.security.guards.common import Handler
from strandline.controller.metadata.security.rights import guarded
from strandline.protocol.apis import BROKER, PRODUCE


def guarded_handlers(
    handlers: Mapping[int, Handler],
    rights: Rights,
    static_member: FindStaticMember = lambda group_id, instance_id: None,
) -> dict[int, Handler]:
    """Api key -> handler, for a broker with an authorizer. `static_member`: the id of a group's member with this instance id."""
    owners = {**SessionOwners(static_member).guards(), PRODUCE: ProducerOwners().produce}
    return guarded(handlers, BROKER, rights, owners)
