"""A cluster of one broker with a Kafka listener of each security protocol, as some suites expect it: `python one_broker.py DIR`.

It prints a line of JSON: the port of each listener (`plain`, `ssl`, `sasl_plain`, `sasl_ssl`) and the folder with certificates
(`ca.pem`, `client.pem`). It ends when its standard input does. The users are `USERS`, everyone has all rights unless an ACL says
otherwise, and clients on the listener without SASL are super users. Further arguments are settings of the nodes: key=value.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from strandline.certificates import make_authority, make_certificate
from strandline.controller.metadata.node_security.users_file import format_users
from strandline.local_cluster import HOST, LocalCluster, Node, free_port_range
from strandline.protocol.security.mechanisms import SCRAM_256, SCRAM_512
from strandline.protocol.security.scram import new_credential

USERS = {"admin": "admin", "sasl_user": "sasl_user", "test": "test", "test2": "test2", "alice": "alice-secret"}
LISTENERS = {"plain": "PLAINTEXT", "ssl": "SSL", "sasl_plain": "SASL_PLAINTEXT", "sasl_ssl": "SASL_SSL"}

NAMES_IN_SUITES = {"ca-cert": "ca.pem", "ca.crt": "ca.pem", "client.crt": "client.pem", "client.key": "client.pem"}
"""The names of certificate and key files in the suites -> the files here."""


class OneBroker(LocalCluster):
    """A cluster whose broker has the id 0, like the brokers that suites start."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self.broker_settings: dict[str, Any] = {}
        super().__init__(folder, brokers=1, controllers=1, settings={"http.listener": "", **settings})
        self.nodes["broker-1"].id = 0
        first = free_port_range(len(LISTENERS))
        self.ports = {name: first + i for i, name in enumerate(LISTENERS)}
        write_security(folder)
        self.broker_settings = self._listeners() | security(folder)

    def broker(self, broker_id: int) -> Node:
        return next(node for node in self.brokers if node.id == broker_id)

    def _listeners(self) -> dict[str, Any]:
        kafka = {name: f"KAFKA_{name.upper()}" for name in LISTENERS}
        addresses = [f"INTERNAL://{HOST}:{self.nodes['broker-1'].port}"]
        addresses += [f"{kafka[name]}://{HOST}:{port}" for name, port in self.ports.items()]
        return {
            "listeners": ",".join(addresses),
            "advertised.listeners": ",".join(addresses),
            "listener.security.protocol.map": ",".join(
                [
                    "INTERNAL:PLAINTEXT",
                    "CONTROLLER:PLAINTEXT",
                    *(f"{kafka[name]}:{protocol}" for name, protocol in LISTENERS.items()),
                ]
            ),
            "inter.broker.listener.name": "INTERNAL",
            "kafka.listener.names": ",".join(kafka.values()),
        }

    def _config(self, node: Node) -> dict[str, Any]:
        rights = {
            "authorizer.class.name": "StandardAuthorizer",
            "super.users": "User:ANONYMOUS;User:admin",
            "allow.everyone.if.no.acl.found": True,
        }
        return super()._config(node) | rights | (self.broker_settings if node.role == "broker" else {})


def write_security(folder: Path) -> None:
    """Write certificates, and the users that exist from the start."""
    folder.mkdir(parents=True, exist_ok=True)
    make_authority(folder, "suites")
    for name in ("broker", "client"):
        make_certificate(folder, name, [HOST, "localhost"])
    for name, file in NAMES_IN_SUITES.items():
        shutil.copyfile(folder / file, folder / name)
    credentials = {
        (user, mechanism): new_credential(mechanism, password, os.urandom, 4096)
        for user, password in USERS.items()
        for mechanism in (SCRAM_256, SCRAM_512)
    }
    (folder / "users.toml").write_text(format_users(credentials))


def security(folder: Path) -> dict[str, Any]:
    return {
        "ssl.keystore.location": str(folder / "broker.pem"),
        "ssl.truststore.location": str(folder / "ca.pem"),
        "ssl.client.auth": "requested",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "sasl.scram.users.file": str(folder / "users.toml"),
    }


async def main(folder: Path, *settings: str) -> None:
    given = dict(setting.split("=", 1) for setting in settings)
    async with OneBroker(folder, {key: int(value) if value.isdigit() else value for key, value in given.items()}) as cluster:
        print(json.dumps({**cluster.ports, "folder": str(folder), "bootstrap": cluster.bootstrap}), flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), *sys.argv[2:]))
