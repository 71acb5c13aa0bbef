"""The handlers of a broker, behind the guards of their rights."""

from __future__ import annotations

from collections.abc import Mapping

from strandline.controller.metadata.security.access import Rights
from strandline.controller.metadata.security.guards.common import Handler
from strandline.controller.metadata.security.rights import guarded
from strandline.protocol.apis import BROKER


def guarded_handlers(handlers: Mapping[int, Handler], rights: Rights) -> dict[int, Handler]:
    """Api key -> handler, for a broker with an authorizer."""
    return guarded(handlers, BROKER, rights)
