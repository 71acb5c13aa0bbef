"""A listener with authentication on loopback: users with passwords, and an authority that issues certificates."""

from __future__ import annotations

import contextlib
import datetime
import functools
import os
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import trustme
from rpc_world import serving

from strandline.protocol.rpc.connection import Connection
from strandline.protocol.rpc.server import Server
from strandline.protocol.security.client_security import ClientSecurity
from strandline.protocol.security.listener_security import ListenerSecurity
from strandline.protocol.security.mechanisms import MakeServerExchange
from strandline.protocol.security.plain import plain_server
from strandline.protocol.security.scram import ScramCredential, new_credential, scram_server
from strandline.protocol.security.tls import ServerTls, ServerTlsSettings

SCRAMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")


class Users:
    """Users with a password."""

    def __init__(self, **passwords: str) -> None:
        self.credentials: dict[tuple[str, str], ScramCredential] = {}
        for user, password in passwords.items():
            self.set(user, password)

    def set(self, user: str, password: str) -> None:
        for mechanism in SCRAMS:
            self.credentials[user, mechanism] = new_credential(mechanism, password, os.urandom)

    def remove(self, user: str) -> None:
        for mechanism in SCRAMS:
            del self.credentials[user, mechanism]

    def look_up(self, user: str, mechanism: str) -> ScramCredential | None:
        return self.credentials.get((user, mechanism))

    def mechanisms(self) -> dict[str, MakeServerExchange]:
        offered = {name: scram_server(name, self.look_up, os.urandom) for name in SCRAMS}
        return {**offered, "PLAIN": plain_server(self.look_up, os.urandom)}


@functools.cache
def alice() -> Users:
    return Users(alice="the secret of alice")


def sasl(users: Users | None = None, **more: Any) -> ListenerSecurity:
    """A SASL_PLAINTEXT listener, with the user alice."""
    return ListenerSecurity(security_protocol="SASL_PLAINTEXT", mechanisms=(users or alice()).mechanisms(), **more)


def login(user: str = "alice", password: str = "the secret of alice", mechanism: str = "SCRAM-SHA-256") -> ClientSecurity:
    return ClientSecurity(
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism=mechanism,
        sasl_plain_username=user,
        sasl_plain_password=password,
    )


# -- TLS --------------------------------------------------------------------------------------------------------------

REFUSED = ("missing", "of another authority", "expired", "not valid yet")
"""The possible faults of a client's certificate."""


class Authority:
    """A certificate authority with files in a folder."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self.ca = trustme.CA(key_type=trustme.KeyType.ECDSA)
        self.folder = folder
        self.cafile = str(folder / f"{name}.pem")
        self.ca.cert_pem.write_to_path(self.cafile)

    def issue(
        self, name: str, *hosts: str, days: tuple[int, int] | None = None, common_name: str | None = None
    ) -> tuple[str, str]:
        """Write a certificate and its key. `days`: the first and last day of its validity, counted from today."""
        more: dict[str, Any] = {}
        if days is not None:
            now = datetime.datetime.now(datetime.UTC).replace(tzinfo=None)
            more = {"not_before": now + datetime.timedelta(days[0]), "not_after": now + datetime.timedelta(days[1])}
        certificate = self.ca.issue_cert(*hosts, common_name=common_name, key_type=trustme.KeyType.ECDSA, **more)
        paths = str(self.folder / f"{name}.pem"), str(self.folder / f"{name}.key")
        certificate.private_key_pem.write_to_path(paths[1])
        for index, blob in enumerate(certificate.cert_chain_pems):
            blob.write_to_path(paths[0], append=index > 0)
        return paths

    def server(self, name: str = "server", hosts: tuple[str, ...] = ("127.0.0.1", "localhost"), **more: Any) -> ServerTls:
        certfile, keyfile = self.issue(name, *hosts, days=more.pop("days", None))
        return ServerTls(ServerTlsSettings(certfile=certfile, keyfile=keyfile, cafile=self.cafile, **more))

    def client(self, **more: Any) -> ClientSecurity:
        return ClientSecurity(**{"security_protocol": "SSL", "ssl_cafile": self.cafile, **more})

    def refused(self, certificate: str, version: ssl.TLSVersion) -> ssl.SSLContext:
        """The context of a client whose certificate is one of `REFUSED`."""
        context = ssl.create_default_context(cafile=self.cafile)
        context.minimum_version = context.maximum_version = version
        if certificate != "missing":
            issuer = Authority(self.folder, "other") if certificate == "of another authority" else self
            days = {"expired": (-10, -1), "not valid yet": (2, 10)}.get(certificate)
            context.load_cert_chain(*issuer.issue("client", common_name="client", days=days))
        return context


def tls(server: ServerTls, **more: Any) -> ListenerSecurity:
    """An SSL listener."""
    return ListenerSecurity(**{"security_protocol": "SSL", "tls": server, **more})


# -- connections ------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def secured(security: ListenerSecurity, handlers: Any = None, **more: Any) -> AsyncIterator[tuple[Server, int]]:
    async with serving(handlers, security=security, **more) as (server, port):
        yield server, port


@contextlib.asynccontextmanager
async def connected(port: int, security: ClientSecurity, **more: Any) -> AsyncIterator[Connection]:
    connection = await Connection.connect("127.0.0.1", port, client_id="me", security=security, **more)
    try:
        yield connection
    finally:
        connection.close()


def principals(server: Server) -> list[str]:
    return [str(connection.principal) for connection in server.connections.values()]


OnLoop = Callable[[Callable[[], Any]], None]
