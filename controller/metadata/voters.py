"""`controller.quorum.voters`: the controllers of the metadata quorum, as brokers and controllers are configured with them.

101@host1:9192,102@host2:9192,103@host3:9192
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from strandline.controller.metadata.node_config import parse_address
from strandline.protocol.errors import UsageError

KEY = "controller.quorum.voters"
QUORUM_SIZES = (1, 3, 5)


class Voter(NamedTuple):
    """One of the static voters of the quorum, and where it listens."""

    id: int
    host: str
    port: int


def parse_voters(items: Sequence[str], *, port_min: int = 1) -> tuple[Voter, ...]:
    """The voters, each `id@host:port`: at least one, no id twice. Raises UsageError that names the wrong item."""
    voters = []
    for item in items:
        node, at, address = item.partition("@")
        host, port = parse_address(address) if at and node.isascii() and node.isdigit() else ("", -1)
        if not host or port < port_min:
            raise UsageError(f"config {KEY}: {item!r} is not of the form id@host:port")
        voters.append(Voter(int(node), host, port))
    if not voters:
        raise UsageError(f"config {KEY} must name at least one controller")
    if len({voter.id for voter in voters}) < len(voters):
        raise UsageError(f"config {KEY} names an id twice")
    return tuple(voters)


def check_quorum(voters: Sequence[Voter], node_id: int) -> None:
    """Raise UsageError if these voters cannot be a quorum, or controller `node_id` is not one of them."""
    ids = sorted(voter.id for voter in voters)
    if node_id not in ids:
        raise UsageError(f"config node.id: {node_id} is not one of {KEY} {ids}")
    if len(set(ids)) < len(ids) or len(ids) not in QUORUM_SIZES:
        raise UsageError(f"config {KEY} must name 1, 3 or 5 different controllers, not {ids}")
    if len(voters) > 1 and any(voter.port == 0 for voter in voters):
        raise UsageError(f"config {KEY}: every controller needs a port that is not 0")
