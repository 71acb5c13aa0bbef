"""Tries an address: does its name resolve, does something accept a connection, and is it a node of Strandline?"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from strandline.cli.doctor_facts import Port
from strandline.cli.probe import join_address
from strandline.client.cluster.port_probe import KAFKA, protocol_of
from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode, StrandlineError
from strandline.protocol.messages.admin import ApiVersionsRequest, ApiVersionsResponse
from strandline.protocol.rpc.connection import Connection
from strandline.protocol.rpc.resolver import look_up
from strandline.protocol.security.client_security import NO_SECURITY, ClientSecurity

TIMEOUT_S = 2.0
"""Time limit of each step. Short, because a person waits."""
LISTEN_S = 0.3
"""How long a server that speaks first, such as SSH, is listened to."""


async def try_port(host: str, port: int, security: ClientSecurity = NO_SECURITY) -> Port:
    """Try the address; never raises. `security`: how to connect to a broker."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    found = await reach_port(host, port)
    if found.error:
        return found
    found = await _handshake(host, port, found.address, found.resolved, security)
    return found if found.error else _timed(found, (loop.time() - began) * 1000)


async def reach_port(host: str, port: int) -> Port:
    """Whether the name resolves and something accepts connections; never raises."""
    address = join_address(host, port)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            resolved = tuple(await look_up(host))
    except TimeoutError:
        return Port(address, error=f"the resolver does not answer about {host} within {TIMEOUT_S:g} s")
    except (OSError, UnicodeError) as e:
        return Port(address, error=f"{host} does not resolve here ({getattr(e, 'strerror', None) or e})")
    reason = await _refusal(host, port)
    return Port(address, resolved, not reason, reason)


def _timed(port: Port, elapsed_ms: float) -> Port:
    return Port(port.address, port.resolved, True, "", "", port.role, port.node_id, port.cluster_id, elapsed_ms)


async def _refusal(host: str, port: int) -> str:
    """Why no connection can be opened; empty if one can."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            _, writer = await asyncio.open_connection(host, port)
    except TimeoutError:
        return f"no answer within {TIMEOUT_S:g} s: a firewall drops the packets, or the host is down"
    except ConnectionRefusedError:
        return "nothing listens there (connection refused)"
    except OSError as e:
        return f"cannot connect ({e.strerror or e})"
    writer.close()
    return ""


async def _handshake(host: str, port: int, address: str, resolved: tuple[str, ...], security: ClientSecurity) -> Port:
    timeout_ms = int(TIMEOUT_S * 1000)
    connection = None
    try:
        connection = await Connection.connect(host, port, client_id="doctor", connect_timeout_ms=timeout_ms, security=security)
        who = await connection.request(apis.API_VERSIONS, ApiVersionsRequest(), timeout_ms=timeout_ms)
        assert isinstance(who, ApiVersionsResponse)
        return Port(address, resolved, True, role=who.role, node_id=who.node_id, cluster_id=who.cluster_id)
    except (StrandlineError, OSError, TimeoutError) as e:
        if isinstance(e, BrokerError) and e.code == ErrorCode.INVALID_REQUEST and e.message:  # A listener for Kafka's clients.
            return Port(address, resolved, True, e.message.removeprefix("this port "), KAFKA)
        speaks = await _speaks(host, port)
        return Port(address, resolved, True, _why_not(speaks, e, security), speaks)
    finally:
        if connection is not None:
            connection.close()


def _why_not(speaks: str, error: Exception, security: ClientSecurity) -> str:
    """Why an open port is no node for this client."""
    if security is not NO_SECURITY:
        return f"does not let this client in ({error})"
    if speaks == "TLS":
        return "speaks TLS, and this client does not"
    return f"speaks {speaks}, and not Strandline's protocol" if speaks else "accepts connections, and answers no handshake"


async def _speaks(host: str, port: int) -> str:
    """The protocol of a server that is no node of ours; empty if it is not recognised."""
    return await protocol_of(host, port) or await _greeting(host, port)


async def _greeting(host: str, port: int) -> str:
    """The first words of a server that speaks first."""
    first = await _answer(host, port, b"", LISTEN_S)
    text = first[:40].split(b"\n")[0].decode("ascii", "replace").strip()
    return f"a protocol that begins with {text!r}" if text else ""


async def _answer(host: str, port: int, question: bytes, timeout_s: float) -> bytes:
    """The first bytes that a server sends; empty if it sends none in time."""
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(question)
                return await reader.read(256)
            finally:
                writer.close()
    return b""
