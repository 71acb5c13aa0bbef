"""A closed cluster for librdkafka's tests: TLS, SASL and rights on each listener, with one more listener per protocol.

Its user `test` has a password, a certificate and all rights, but is no super user, so rules that deny apply to it, too. With
`lenient`, no user has been given rights, and everything is allowed that no rule is about: tests of rights expect that.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import suite
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
    pkcs12,
)

from strandline.certificates import CA, make_certificate
from strandline.client.admin.admin import Admin
from strandline.client.security_types import Acl
from strandline.local_cluster import HOST, Node, free_port_range
from strandline.local_security import MAPPING
from strandline.protocol.security.mechanisms import SCRAM_256, SCRAM_512

USER, PASSWORD = "test", "test-secret"
LISTENERS = {"SSL": "SSL", "SSL_REQUESTED": "SSL", "SASL_PLAINTEXT": "SASL_PLAINTEXT", "SASL_SSL": "SASL_SSL"}
"""Name -> protocol. The names of the listeners are these with KAFKA_ before them."""
REAUTHENTICATION_MS = 10_000
RESOURCES = {"TOPIC": "*", "GROUP": "*", "TRANSACTIONAL_ID": "*", "CLUSTER": "kafka-cluster"}


class SecureCluster(suite.FromZero):
    def __init__(self, folder: Path, key_set: Path, settings: Mapping[str, Any], *, lenient: bool = False) -> None:
        self.ports: dict[str, int] = {}
        self._key_set, self._lenient = key_set, lenient
        rule = {"allow.everyone.if.no.acl.found": lenient}
        super().__init__(folder, brokers=3, controllers=1, settings={**settings, **rule}, secure=True)
        first = free_port_range(len(LISTENERS) * len(self.brokers))
        self.ports = {name: first + i * len(self.brokers) for i, name in enumerate(LISTENERS)}
        assert self.security
        self.certificates = self.security.folder

    def addresses_of(self, listener: str) -> str:
        return ",".join(f"{HOST}:{self.ports[listener] + node.id}" for node in self.brokers)

    def _config(self, node: Node) -> dict[str, Any]:
        config = super()._config(node)
        if node.role != "broker" or not self.ports:
            return config
        listeners = [f"KAFKA_{name}://{HOST}:{port + node.id}" for name, port in self.ports.items()]
        protocols = [f"KAFKA_{name}:{protocol}" for name, protocol in LISTENERS.items()]
        return {
            **config,
            "listeners": ",".join([config["listeners"], *listeners]),
            "listener.security.protocol.map": ",".join([config["listener.security.protocol.map"], *protocols]),
            "inter.broker.listener.name": "SASL_SSL",
            "kafka.listener.names": ",".join(f"KAFKA_{name}" for name in LISTENERS),
            "sasl.enabled.mechanisms": "SCRAM-SHA-512,SCRAM-SHA-256,PLAIN,OAUTHBEARER",
            "sasl.oauthbearer.jwks.endpoint.url": self._key_set.absolute().as_uri(),
            "connections.max.reauth.ms": REAUTHENTICATION_MS,
            "listener.name.kafka_ssl.ssl.client.auth": "required",
            "listener.name.kafka_ssl.ssl.principal.mapping.rules": MAPPING,
            "listener.name.kafka_ssl_requested.ssl.client.auth": "requested",
        }

    async def _create_roles(self) -> None:
        """Create the user `test`, instead of the roles of other secure clusters."""
        assert self.security
        async with Admin(bootstrap_servers=self.bootstrap, security=self.security.security_of("admin")) as admin:
            await admin.upsert_scram_credentials(USER, PASSWORD, mechanisms=[SCRAM_256, SCRAM_512])
            if not self._lenient:
                await admin.create_acls([Acl(f"User:{USER}", "ALL", kind, name) for kind, name in RESOURCES.items()])

    # -- files of clients

    def write_client_files(self) -> None:
        """Write the certificate of the user in each format that the tests read."""
        folder = self.certificates
        make_certificate(folder, USER, [HOST, "localhost"])
        pem = (folder / f"{USER}.pem").read_bytes()
        key, chain = load_pem_private_key(pem, None), x509.load_pem_x509_certificates(pem)
        authority = x509.load_pem_x509_certificate((folder / CA).read_bytes())
        locked = BestAvailableEncryption(PASSWORD.encode())
        contents = {
            "pub_pem": b"".join(part.public_bytes(Encoding.PEM) for part in chain),
            "pub_der": chain[0].public_bytes(Encoding.DER),
            "priv_pem": key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, locked),
            "priv_der": key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption()),
            "ca_pem": (folder / CA).read_bytes(),
            "all_cas_pem": (folder / CA).read_bytes(),
            "ca_der": authority.public_bytes(Encoding.DER),
            "pkcs": pkcs12.serialize_key_and_certificates(USER.encode(), key, chain[0], [authority], locked),  # type: ignore[arg-type]
        }
        for name, content in contents.items():
            (folder / name).write_bytes(content)

    def tls_environment(self, client_auth: str) -> dict[str, str]:
        """The environment variables that the tests of TLS read."""
        names = ("pub_pem", "pub_der", "priv_pem", "priv_der", "ca_pem", "all_cas_pem", "ca_der", "pkcs")
        files = {f"SSL_{name}": str(self.certificates / name) for name in names}
        return {**files, "SSL_password": PASSWORD, "SSL_client_auth": client_auth}

    @property
    def trust(self) -> dict[str, str]:
        return {"ssl.ca.location": os.fspath(self.certificates / CA)}

    @property
    def certificate(self) -> dict[str, str]:
        return {
            "ssl.certificate.location": os.fspath(self.certificates / "pub_pem"),
            "ssl.key.location": os.fspath(self.certificates / "priv_pem"),
            "ssl.key.password": PASSWORD,
        }
