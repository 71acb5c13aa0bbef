"""The metrics of a node's authorizer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from strandline.observe.reading import Reading

if TYPE_CHECKING:
    from strandline.broker.process.server import BrokerServer
    from strandline.controller.server import ControllerServer


def authorization(server: BrokerServer | ControllerServer) -> Iterator[Reading]:
    authorizer = server.authorizer
    counts = (0, 0, 0) if authorizer is None else (len(authorizer), authorizer.allowed_total, authorizer.denied_total)
    for name, count in zip(("acls", "allowed_total", "denied_total"), counts, strict=True):
        yield Reading(f"strandline_authorizer_{name}", count)
