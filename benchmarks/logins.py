"""Measures logins: a server process with one listener for each way, and a client process that connects again and again.

    python benchmarks/logins.py                 each way for two seconds (needs the extra dev)

The client hashes the password in each login by SCRAM (4096 iterations), the server does not; PLAIN is the other way round.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing as mp
import os
import tempfile
import time
from multiprocessing.connection import Connection as Pipe

import uvloop
from rpc import make_certificate

from strandline.protocol.rpc.connection import Connection
from strandline.protocol.rpc.server import Server
from strandline.protocol.security.client_security import ClientSecurity
from strandline.protocol.security.listener_security import ListenerSecurity
from strandline.protocol.security.plain import plain_server
from strandline.protocol.security.scram import new_credential, scram_server
from strandline.protocol.security.tls import ServerTls, ServerTlsSettings

SCRAMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
WAYS = [
    ("PLAINTEXT", None),
    ("SSL", None),
    ("SASL_PLAINTEXT", "SCRAM-SHA-256"),
    ("SASL_PLAINTEXT", "SCRAM-SHA-512"),
    ("SASL_SSL", "SCRAM-SHA-512"),
    ("SASL_SSL", "PLAIN"),
]
IN_FLIGHT = 8


def serve(pipe: Pipe, protocol: str, folder: str) -> None:
    credentials = {name: new_credential(name, "secret", os.urandom) for name in SCRAMS}

    def look_up(user: str, mechanism: str):
        return credentials.get(mechanism)

    mechanisms = {name: scram_server(name, look_up, os.urandom) for name in SCRAMS}
    settings = ServerTlsSettings(certfile=f"{folder}/server.pem", keyfile=f"{folder}/server.pem")
    security = ListenerSecurity(
        security_protocol=protocol,
        tls=ServerTls(settings),
        mechanisms={**mechanisms, "PLAIN": plain_server(look_up, os.urandom)},
    )

    async def main() -> None:
        server = Server({}, role="broker", node_id=1, cluster_id="bench", incarnation_id=bytes(16), security=security)
        pipe.send(await server.start("127.0.0.1", 0))
        stopped = asyncio.Event()
        asyncio.get_running_loop().add_reader(pipe.fileno(), stopped.set)
        before = time.process_time()
        await stopped.wait()
        pipe.send(time.process_time() - before)
        await server.stop()

    uvloop.run(main())


def settings_of(protocol: str, mechanism: str | None, folder: str) -> ClientSecurity:
    tls = {"ssl_cafile": f"{folder}/ca.pem"} if protocol.endswith("SSL") else {}
    sasl = (
        {}
        if mechanism is None
        else {"sasl_plain_username": "alice", "sasl_plain_password": "secret", "sasl_mechanism": mechanism}
    )
    return ClientSecurity(security_protocol=protocol, **tls, **sasl)


async def log_in(port: int, security: ClientSecurity, until: float) -> int:
    count = 0
    while time.perf_counter() < until:
        (await Connection.connect("127.0.0.1", port, client_id="bench", security=security)).close()
        count += 1
    return count


def measure(protocol: str, mechanism: str | None, folder: str, seconds: float) -> str:
    context = mp.get_context("spawn")
    ours, theirs = context.Pipe()
    server = context.Process(target=serve, args=(theirs, protocol, folder))
    server.start()
    port, security = ours.recv(), settings_of(protocol, mechanism, folder)

    async def main() -> int:
        await log_in(port, security, time.perf_counter() + 0.2)  # Imports, and the first handshakes.
        until = time.perf_counter() + seconds
        return sum(await asyncio.gather(*(log_in(port, security, until) for _ in range(IN_FLIGHT))))

    before = time.process_time()
    count = uvloop.run(main())
    client_us = (time.process_time() - before) / count * 1e6
    ours.send("stop")
    server_us = ours.recv() / count * 1e6
    server.join()
    name = f"{protocol} {mechanism or ''}"
    return f"{name:<30} {count / seconds:>7,.0f} logins/s   server {server_us:>6,.0f} us   client {client_us:>6,.0f} us"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        make_certificate(folder)
        for protocol, mechanism in WAYS:
            print(measure(protocol, mechanism, folder, options.seconds), flush=True)


if __name__ == "__main__":
    main()
