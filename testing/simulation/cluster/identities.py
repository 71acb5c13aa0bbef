"""The users of a simulated cluster with security, their passwords, and their rights.

The simulated network has no TLS. Every node and client authenticates by SCRAM over SASL_PLAINTEXT, with the production code of
both ends. The users of nodes are in a file of each node, because nodes meet before there is metadata; those of clients are
credentials in the metadata, which the administrator creates, and sometimes changes. The administrator and the nodes are super
users.

A client's user is the name of the client: `p1`, also for the process that replaces it (`p1'`). `grants` returns the rights that
each user needs for its work, and no more.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from strandline.client import Acl
from strandline.controller.metadata.node_security.users_file import format_users
from strandline.protocol.messages.security import SCRAM_ITERATIONS_MIN
from strandline.protocol.security.client_security import ClientSecurity
from strandline.protocol.security.mechanisms import SCRAM_256
from strandline.protocol.security.scram import ScramCredential, credential_of, salted_password
from strandline.testing.simulation.group_plans import CONFIGURES, DEAD_LETTERS, JOBS, RETRIES
from strandline.testing.simulation.options import ALL, Options

ADMIN, INTRUDER = "admin", "intruder"
USERS_FILE, PASSWORD_FILE = "/etc/users.toml", "/etc/password"
_WORKER = re.compile(r"(p|c|r|m|t|shipper|p-racer|p-holder|p-writer)\d+|trimmer|clerk|jobs|liar|intruder")
"""Clients with users of their own. All others do the work of the administrator, as its user."""


def user_of(client: str) -> str:
    """The user of the client of this name."""
    name = client.rstrip("'")
    return name if _WORKER.fullmatch(name) else ADMIN


def node_user(node_id: int) -> str:
    return f"node-{node_id}"


class Identities:
    """The users of one cluster."""

    def __init__(self, node_ids: list[int], *, max_reauth_ms: int = 0, settings: dict[str, Any] | None = None) -> None:
        self.node_ids = node_ids
        self.max_reauth_ms = max_reauth_ms
        self._settings = settings or {}
        self._passwords: dict[str, str] = {}
        """The passwords that were changed."""
        users = {(user, SCRAM_256): _credential(user, self.password(user)) for user in (ADMIN, *map(node_user, node_ids))}
        self._users_file = format_users(users).encode()

    # -- nodes --------------------------------------------------------------------------------------------------------

    def settings(self, node_id: int) -> dict[str, Any]:
        """The settings of a node that concern security."""
        return {
            "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": SCRAM_256,
            "sasl.mechanism.inter.broker.protocol": SCRAM_256,
            "sasl.mechanism.controller.protocol": SCRAM_256,
            "sasl.scram.users.file": USERS_FILE,
            "sasl.node.username": node_user(node_id),
            "sasl.node.password.file": PASSWORD_FILE,
            "connections.max.reauth.ms": self.max_reauth_ms,
            "authorizer.class.name": "StandardAuthorizer",
            "super.users": ";".join(f"User:{user}" for user in (ADMIN, *map(node_user, self.node_ids))),
            **self._settings,
        }

    def files(self, node_id: int) -> dict[str, bytes]:
        """The files that the settings of a node name."""
        return {USERS_FILE: self._users_file, PASSWORD_FILE: self.password(node_user(node_id)).encode()}

    # -- clients ------------------------------------------------------------------------------------------------------

    def password(self, user: str) -> str:
        return self._passwords.get(user, f"the password of {user}")

    def change_password(self, user: str, password: str) -> None:
        """Let clients of this user that connect from now on use this password."""
        self._passwords[user] = password

    def client(self, user: str, random_bytes: Callable[[int], bytes]) -> ClientSecurity:
        """The security settings with which a client of this user connects."""
        return ClientSecurity(
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism=SCRAM_256,
            sasl_plain_username=user,
            sasl_plain_password=self.password(user),
            random_bytes=random_bytes,
        )


def _credential(user: str, password: str) -> ScramCredential:
    salt = Random(user).randbytes(16)
    return credential_of(SCRAM_256, salted_password(SCRAM_256, password, salt, SCRAM_ITERATIONS_MIN), salt, SCRAM_ITERATIONS_MIN)


# -- rights -----------------------------------------------------------------------------------------------------------


def grants(options: Options) -> dict[str, list[Acl]]:
    """User -> the rules that let it do its work, for all clients of a run."""
    return {user: list(_rules(user, options)) for user in _users(options)}


def _users(options: Options) -> list[str]:
    """The users of the clients in the order in which they begin, without the administrator and its helpers."""
    return [
        *(f"p{number}" for number in range(1, len(options.producers) + 1)),
        *(f"c{number}" for number in range(1, len(options.consumers) + 1)),
        *(f"r{number}" for number in range(1, options.readers + 1)),
        *(f"p-racer{number}" for number in range(1, options.racers + 1)),
        *(f"p-holder{number}" for number in range(1, options.holders + 1)),
        *(["trimmer"] if options.trims else []),
        *(f"m{number}" for number in range(1, len(options.members) + 1)),
        *(name for name in options.group_work if name != CONFIGURES),
        *(f"p-writer{number}" for number in range(1, len(options.writers) + 1)),
        *(f"shipper{number}" for number in range(1, len(options.shippers) + 1)),
        *(f"t{number}" for number in range(1, options.committed_readers + 1)),
        INTRUDER,
    ]


def _rules(user: str, options: Options) -> Iterator[Acl]:
    kind, number = re.fullmatch(r"(.*?)(\d*)", user).groups()  # type: ignore[union-attr]
    index = int(number or 1) - 1
    topics = [topic.name for topic in options.topics]

    def allow(operation: str, resource_type: str, *names: str, pattern: str = "LITERAL") -> Iterator[Acl]:
        yield from (Acl(f"User:{user}", operation, resource_type, name, pattern) for name in names)

    if kind == "p":
        yield from allow("WRITE", "TOPIC", options.producers[index].topic)
    elif kind == "c":
        yield from allow("READ", "TOPIC", options.consumers[index].topic)
    elif kind == "r":
        yield from allow("DESCRIBE", "TOPIC", "*")
    elif kind in ("p-racer", "p-holder"):
        yield from allow("WRITE", "TOPIC", *(topic.name for topic in options.topics if topic.promise == ALL))
    elif kind == "trimmer":
        yield from allow("DELETE", "TOPIC", *topics)
    elif kind == "m":
        yield from allow("READ", "GROUP", options.members[index].group)
        yield from allow("READ", "TOPIC", *topics, JOBS)
        for operation in ("READ", "WRITE", "CREATE") if options.members[index].run else ():
            yield from allow(operation, "TOPIC", RETRIES, DEAD_LETTERS)
    elif kind in ("clerk", "jobs"):
        yield from allow("ALL", "GROUP", "*")
        yield from allow("ALL", "TOPIC", "*")
        yield from allow("ALL", "CLUSTER", "kafka-cluster")
    elif kind in ("p-writer", "shipper"):
        yield from _transactional(allow, kind, index, options)
    elif kind == "t":
        yield from allow("READ", "TOPIC", *(topic.name for topic in options.transactional_topics))
    elif kind == INTRUDER:
        yield from allow("DESCRIBE", "TOPIC", "*")


def _transactional(allow: Callable[..., Iterator[Acl]], kind: str, index: int, options: Options) -> Iterator[Acl]:
    plans = options.writers if kind == "p-writer" else options.shippers
    yield from allow("WRITE", "TRANSACTIONAL_ID", plans[index].transactional_id)
    yield from allow("WRITE", "TOPIC", *(topic.name for topic in options.transactional_topics))
    if kind == "shipper":
        yield from allow("READ", "TOPIC", *(topic.name for topic in options.transactional_topics))
        yield from allow("READ", "GROUP", "ship", pattern="PREFIXED")
