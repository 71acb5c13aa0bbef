"""The handlers of a controller, behind the guards of their rights."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.security.access import Rights
from strandline.controller.metadata.security.authorizer import Authorizer
from strandline.controller.metadata.security.guards.common import Handler
from strandline.controller.metadata.security.rights import guarded
from strandline.controller.security.envelope import EnvelopeHandler
from strandline.protocol.apis import CONTROLLER, ENVELOPE


def authorized(
    handlers: Mapping[int, Handler],
    authorizer: Authorizer | None,
    committed: Callable[[], MetadataImage],
    find_handler: Callable[[int], Handler | None],
) -> dict[int, Handler]:
    """The handlers and that of Envelope, each behind its guard; without an authorizer there are no guards.

    `committed` returns the committed image, whose access rules count. `find_handler` returns the guarded handler of an API."""
    if authorizer is None:
        return {**handlers, ENVELOPE: EnvelopeHandler(find_handler, has_authorizer=False).handle}
    all_handlers = {**handlers, ENVELOPE: EnvelopeHandler(find_handler).handle}
    return guarded(all_handlers, CONTROLLER, Rights(authorizer, committed))
