"""The security of a cluster of the kit (`secure=True`): its users, and how nodes and clients connect.

In the test's own process, nodes and clients connect by SASL_PLAINTEXT with SCRAM, without TLS, because the kit's network faults
need the plain bytes of the protocol. With `processes=True` the cluster is that of `strandline up --secure`, with TLS. Both have
the same users: `admin` and the nodes are super users, `producer` may write and create topics, `consumer` may read topics and join
groups. A user that the test adds has no rights.

The passwords of a cluster in the test's process are no secrets: each is the user's name followed by "-password".
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from strandline.local_security import ADMIN, CONSUMER, PRODUCER
from strandline.protocol.security.client_security import ClientSecurity
from strandline.protocol.security.mechanisms import SCRAM_256, SCRAM_512
from strandline.storage.files import Files

ITERATIONS = 4096


class KitSecurity:
    """The users of a cluster in the test's process. `folder`: where the nodes find their files, on their disks."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def write(self, disks: Mapping[str, Files]) -> None:
        """Write the users to the disks of the nodes, which are given by their names."""
        from strandline.controller.metadata.node_security.users_file import format_users
        from strandline.protocol.security.scram import new_credential

        users = {
            (user, SCRAM_512): new_credential(SCRAM_512, password_of(user), _salt_of(user), ITERATIONS)
            for user in (*disks, ADMIN, PRODUCER, CONSUMER)
        }
        for node, files in disks.items():
            files.make_dirs(self._folder)
            files.write(self._users_file, format_users(users).encode())
            files.write(self._password_file(node), password_of(node).encode())

    @property
    def _users_file(self) -> str:
        return f"{self._folder}/users.toml"

    def _password_file(self, node: str) -> str:
        return f"{self._folder}/{node}.password"

    def config(self, node: str, *, is_broker: bool, address: str, nodes: Sequence[str]) -> dict[str, Any]:
        """The keys of a node's configuration. `address`: host:port of its listener."""
        listener = "SASL_PLAINTEXT" if is_broker else "CONTROLLER"
        return {
            "listeners": f"{listener}://{address}",
            "listener.security.protocol.map": "SASL_PLAINTEXT:SASL_PLAINTEXT,KAFKA:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": f"{SCRAM_512},{SCRAM_256}",
            "sasl.scram.users.file": self._users_file,
            "sasl.node.username": node,
            "sasl.node.password.file": self._password_file(node),
            "authorizer.class.name": "StandardAuthorizer",
            "super.users": ";".join(f"User:{name}" for name in (ADMIN, *nodes)),
        }

    def security_of(self, user: str) -> ClientSecurity:
        """How a client connects as this user."""
        return as_user(user, password_of(user))


def as_user(user: str, password: str) -> ClientSecurity:
    """How a client connects to a cluster in the test's process as a user that the test has added."""
    return ClientSecurity(
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism=SCRAM_512,
        sasl_plain_username=user,
        sasl_plain_password=password,
    )


def password_of(user: str) -> str:
    """The password of a user in a cluster in the test's process."""
    return f"{user}-password"


def _salt_of(user: str) -> Any:
    """A source of the user's salt, which is the same in each test."""
    return lambda size: hashlib.sha256(user.encode()).digest()[:size]
