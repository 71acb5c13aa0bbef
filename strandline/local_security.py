"""The security of a local cluster (`strandline up --secure`): an authority, certificates, users, and files for clients.

    DIR/security/ca.pem, ca.key           the cluster's own authority
    DIR/security/NODE.pem                 the certificate of a node, for localhost
    DIR/security/NODE.password            the password of a node, for listeners of brokers
    DIR/security/users.toml               the users that exist before the metadata: the nodes, and admin
    DIR/security/admin.properties         Kafka's client properties: one file per user, with its password
    DIR/security/producer.properties, consumer.properties

Clients and nodes reach brokers by SASL_SSL with SCRAM, and controllers by TLS with certificates at both ends. `admin` and the
nodes are super users. `producer` may write and create topics, `consumer` may read topics and join groups. Everything is kept for
the next start in the same folder.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strandline.certificates import CA, make_authority, make_certificate, read_certificate, renew_certificate, write_file
from strandline.protocol.errors import UsageError
from strandline.protocol.security.client_security import ClientSecurity
from strandline.protocol.security.mechanisms import SCRAM_512

if TYPE_CHECKING:
    from strandline.client.security_types import Acl

HOSTS = ("127.0.0.1", "localhost", "::1")
ADMIN, PRODUCER, CONSUMER = "admin", "producer", "consumer"
USERS = (ADMIN, PRODUCER, CONSUMER)
MAPPING = "RULE:^CN=([^,]+)$/$1/"
"""A node's principal is the common name of its certificate: User:controller-101."""
RENEWED_DAYS_BEFORE = 30
_PASSWORD_BYTES = 18


class LocalSecurity:
    """The files of a secure local cluster, and the keys that name them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def client_configs(self) -> dict[str, str]:
        """User -> the path of its client properties."""
        return {user: str(self._properties(user)) for user in USERS}

    def security_of(self, user: str) -> ClientSecurity:
        """How a client connects as this user."""
        return ClientSecurity.from_file(str(self._properties(user)))

    def password_of(self, user: str) -> str:
        """The password in the client properties of a user."""
        found = re.search(r'password="([^"]+)"', self._properties(user).read_text())
        if found is None:
            raise UsageError(f"{self._properties(user)} has no password; remove {self.folder}, and start again")
        return found[1]

    # -- files --------------------------------------------------------------------------------------------------------

    def write(self, nodes: Sequence[str]) -> None:
        """Write what is missing, and renew certificates that would soon expire. UsageError if a file cannot be written."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._write_certificates(nodes)
            for user in USERS:
                if not self._properties(user).exists():
                    self._write_properties(user)
            self._write_users(nodes)
        except OSError as e:
            raise UsageError(f"cannot write {e.filename}: {e.strerror}") from None

    def _write_certificates(self, nodes: Sequence[str]) -> None:
        import datetime

        if not (self.folder / CA).exists():
            make_authority(self.folder, f"strandline up in {self.folder.parent}"[:64])
        now = datetime.datetime.now(datetime.UTC)
        for node in nodes:
            path = self.folder / f"{node}.pem"
            if not path.exists():
                make_certificate(self.folder, node, HOSTS)
            elif read_certificate(path).days_left(now) < RENEWED_DAYS_BEFORE:
                renew_certificate(path)

    def _write_users(self, nodes: Sequence[str]) -> None:
        from strandline.controller.metadata.node_security.users_file import format_users
        from strandline.protocol.security.scram import ITERATIONS_USUAL, new_credential

        passwords = {node: self._password(node) for node in nodes} | {ADMIN: self.password_of(ADMIN)}
        users = {
            (user, SCRAM_512): new_credential(SCRAM_512, password, os.urandom, ITERATIONS_USUAL)
            for user, password in passwords.items()
        }
        write_file(self.folder / "users.toml", format_users(users).encode(), is_secret=True)

    def _password(self, node: str) -> str:
        path = self.folder / f"{node}.password"
        if not path.exists():
            write_file(path, secrets.token_urlsafe(_PASSWORD_BYTES).encode(), is_secret=True)
        return path.read_text()

    def _properties(self, user: str) -> Path:
        return self.folder / f"{user}.properties"

    def _write_properties(self, user: str) -> None:
        password = secrets.token_urlsafe(_PASSWORD_BYTES)
        text = (
            "security.protocol=SASL_SSL\n"
            f"sasl.mechanism={SCRAM_512}\n"
            "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required "
            f'username="{user}" password="{password}";\n'
            "ssl.truststore.type=PEM\n"
            f"ssl.truststore.location={self.folder / CA}\n"
        )
        write_file(self._properties(user), text.encode(), is_secret=True)

    # -- configuration ------------------------------------------------------------------------------------------------

    def config(self, node: str, role: str, address: str, nodes: Sequence[str]) -> dict[str, Any]:
        """The keys of a node's configuration that replace those of an open cluster. `address`: host:port of its listener."""
        listener = "SASL_SSL" if role == "broker" else "CONTROLLER"
        of_controllers = {"ssl.client.auth": "required", "ssl.principal.mapping.rules": MAPPING}
        of_brokers = {"sasl.enabled.mechanisms": f"{SCRAM_512},SCRAM-SHA-256"}
        return {
            "listeners": f"{listener}://{address}",
            "listener.security.protocol.map": "SASL_SSL:SASL_SSL,CONTROLLER:SSL,KAFKA:SASL_SSL",
            "ssl.keystore.location": str(self.folder / f"{node}.pem"),
            "ssl.truststore.location": str(self.folder / CA),
            **(of_brokers if role == "broker" else of_controllers),
            "sasl.scram.users.file": str(self.folder / "users.toml"),
            "sasl.node.username": node,
            "sasl.node.password.file": str(self.folder / f"{node}.password"),
            "authorizer.class.name": "StandardAuthorizer",
            "super.users": ";".join(f"User:{name}" for name in (ADMIN, *nodes)),
        }


async def create_roles(bootstrap: str, security: LocalSecurity) -> None:
    """Create the users `producer` and `consumer` with their rights, unless they exist. Needs a cluster that is ready."""
    from strandline.client.admin.admin import Admin

    async with Admin(bootstrap_servers=bootstrap, security=security.security_of(ADMIN)) as admin:
        known = await admin.describe_scram_credentials([PRODUCER, CONSUMER])
        for user in (PRODUCER, CONSUMER):
            if user not in known:
                await admin.upsert_scram_credentials(user, security.password_of(user))
                await admin.create_acls(rights_of(user))


def rights_of(user: str) -> list[Acl]:
    """The access rules of `producer` or `consumer`."""
    from strandline.client.security_types import Acl

    rights = {
        PRODUCER: [("TOPIC", "WRITE"), ("TOPIC", "CREATE"), ("TRANSACTIONAL_ID", "WRITE")],
        CONSUMER: [("TOPIC", "READ"), ("GROUP", "READ")],
    }
    return [Acl(f"User:{user}", operation, resource, "*") for resource, operation in rights[user]]
