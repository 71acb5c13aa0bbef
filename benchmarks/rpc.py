"""Measures the rpc layer alone, with an echo server and one client, each in its own process.

    python benchmarks/rpc.py                     requests with 64 KiB of records, and with 200 bytes
    python benchmarks/rpc.py --size 1048576 --in-flight 5 --megabytes 2000
    python benchmarks/rpc.py --loop asyncio
    python benchmarks/rpc.py --tls               the same over TLS 1.3 (needs the extra dev)

Judge by CPU seconds per GB and CPU microseconds per request: they repeat within a few percent, MB/s does not.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing as mp
import tempfile
import time
from collections.abc import Coroutine
from multiprocessing.connection import Connection as Pipe
from typing import Any

import uvloop

from strandline.protocol.apis import PRODUCE
from strandline.protocol.messages.data import ProducePartition, ProducePartitionResponse, ProduceRequest, ProduceResponse
from strandline.protocol.rpc.connection import Connection
from strandline.protocol.rpc.server import Server, ServerRequest
from strandline.protocol.security.client_security import NO_SECURITY, ClientSecurity
from strandline.protocol.security.listener_security import ListenerSecurity
from strandline.protocol.security.tls import ServerTls, ServerTlsSettings

TOPIC_ID = bytes(16)


def run(main: Coroutine[Any, Any, None], loop: str) -> None:
    (uvloop.run if loop == "uvloop" else asyncio.run)(main)


def on_produce(request: ServerRequest) -> None:
    body: ProduceRequest = request.body
    answers = [
        ProducePartitionResponse(p.topic_id, p.partition, base_offset=len(records))
        for p, records in zip(body.partitions, body.records, strict=True)
    ]
    request.reply(ProduceResponse(answers))


def serve(pipe: Pipe, loop: str, folder: str | None) -> None:
    security = None if folder is None else server_security(folder)

    async def main() -> None:
        server = Server(
            {PRODUCE: on_produce}, role="broker", node_id=1, cluster_id="bench", incarnation_id=bytes(16), security=security
        )
        pipe.send(await server.start("127.0.0.1", 0))
        before = time.process_time()
        stopped = asyncio.Event()
        asyncio.get_running_loop().add_reader(pipe.fileno(), stopped.set)
        await stopped.wait()
        pipe.send(time.process_time() - before)
        await server.stop()

    run(main(), loop)


def make_certificate(folder: str) -> None:
    import trustme

    ca = trustme.CA(key_type=trustme.KeyType.ECDSA)
    ca.cert_pem.write_to_path(f"{folder}/ca.pem")
    ca.issue_cert("127.0.0.1", key_type=trustme.KeyType.ECDSA).private_key_and_cert_chain_pem.write_to_path(
        f"{folder}/server.pem"
    )


def server_security(folder: str) -> ListenerSecurity:
    settings = ServerTlsSettings(certfile=f"{folder}/server.pem", keyfile=f"{folder}/server.pem")
    return ListenerSecurity(security_protocol="SSL", tls=ServerTls(settings))


def client_security(folder: str | None) -> ClientSecurity:
    return NO_SECURITY if folder is None else ClientSecurity(security_protocol="SSL", ssl_cafile=f"{folder}/ca.pem")


async def ask(port: int, size: int, in_flight: int, total: int, security: ClientSecurity) -> float:
    """Keep `in_flight` requests in flight until `total` have a response; returns the seconds that this took."""
    connection = await Connection.connect("127.0.0.1", port, client_id="bench", security=security)
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    body = ProduceRequest(None, -1, 30000, [ProducePartition(TOPIC_ID, 0)], [])
    records = [[b"r" * size]]
    left_to_send, left_to_hear = total, total

    def send() -> None:
        nonlocal left_to_send
        left_to_send -= 1
        connection.send(PRODUCE, body, records, on_response=on_response)

    def on_response(response: object) -> None:
        nonlocal left_to_hear
        if isinstance(response, Exception):
            raise response
        left_to_hear -= 1
        if left_to_send:
            send()
        elif not left_to_hear:
            done.set_result(None)

    started = loop.time()
    for _ in range(in_flight):
        send()
    await done
    took = loop.time() - started
    connection.close()
    return took


def measure(size: int, in_flight: int, total: int, loop: str, folder: str | None) -> str:
    context = mp.get_context("spawn")
    ours, theirs = context.Pipe()
    server = context.Process(target=serve, args=(theirs, loop, folder))
    server.start()
    port = ours.recv()
    took = client_cpu = 0.0

    async def main() -> None:
        nonlocal took, client_cpu
        before = time.process_time()
        await ask(port, size, in_flight, max(in_flight, total // 20), client_security(folder))
        took = await ask(port, size, in_flight, total, client_security(folder))
        client_cpu = time.process_time() - before

    run(main(), loop)
    ours.send("stop")
    server_cpu = ours.recv()
    server.join()
    requests = total * 21 / 20
    gigabytes = size * requests / 1e9
    return (
        f"{size:>8} B x {in_flight:<3} {loop:<8} {total / took:>9,.0f} requests/s {size * total / took / 1e6:>7,.0f} MB/s"
        f"   server {server_cpu / gigabytes:>6.2f} CPU s/GB {server_cpu / requests * 1e6:>6.1f} us/request   client"
        f" {client_cpu / gigabytes:>6.2f} CPU s/GB {client_cpu / requests * 1e6:>6.1f} us/request"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, help="bytes of records per request (default: 65536 and 200)")
    parser.add_argument("--in-flight", type=int, help="requests in flight (default: 5 for large ones, 50 for small ones)")
    parser.add_argument("--megabytes", type=int, default=3000, help="how much to send, of large requests")
    parser.add_argument("--requests", type=int, default=200_000, help="how many to send, of small requests")
    parser.add_argument("--loop", choices=["uvloop", "asyncio"], default="uvloop")
    parser.add_argument("--tls", action="store_true", help="over TLS")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.tls:
            make_certificate(folder)
        for size in [options.size] if options.size else [65536, 200]:
            is_large = size >= 4096
            total = max(1, options.megabytes * 1_000_000 // size) if is_large else options.requests
            in_flight = options.in_flight or (5 if is_large else 50)
            print(measure(size, in_flight, total, options.loop, folder if options.tls else None), flush=True)


if __name__ == "__main__":
    main()
