"""Slow is not silent: an arriving response, or a request that is still being sent, is a sign of life."""

from __future__ import annotations

import asyncio
import socket
import sys

import pytest
from rpc_world import BOUND_S, TOPIC_ID, on_produce, produce, serving
from slow_pipe import slow_pipe

from strandline.protocol.apis import FETCH, PRODUCE
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.data import FetchPartition, FetchPartitionResponse, FetchRequest, FetchResponse
from strandline.protocol.rpc.connection import Connection
from strandline.protocol.rpc.server import ServerRequest

SILENCE_MS = 150
BYTES = 400_000
BITE = 16_000
"""Bytes per piece of the slow link, with which BYTES take half a second, several times SILENCE_MS."""


def on_fetch(request: ServerRequest) -> None:
    request.reply(FetchResponse(0, 0, 0, [FetchPartitionResponse(TOPIC_ID, 0)], []), [[b"r" * BYTES]])


def fetch() -> FetchRequest:
    return FetchRequest(1, -1, 0, 1, BYTES, 0, 0, -1, [FetchPartition(TOPIC_ID, 0, 0, 0, -1, 0, BYTES)])


async def test_an_arriving_response_extends_the_timeout() -> None:
    """Otherwise a follower far behind on a slow link would ask for the same megabytes forever."""
    async with serving({FETCH: on_fetch}) as (_, port), slow_pipe(port, bite_down=BITE) as pipe:
        connection = await Connection.connect("127.0.0.1", pipe.port, client_id="t")
        async with asyncio.timeout(BOUND_S):
            answer = await connection.request(FETCH, fetch(), timeout_ms=SILENCE_MS, of_silence=True)
        assert isinstance(answer, FetchResponse)
        connection.close()


async def test_a_plain_timeout_is_not_extended() -> None:
    """Without `of_silence` the timeout counts for the whole request: a late heartbeat is useless."""
    async with serving({FETCH: on_fetch}) as (_, port), slow_pipe(port, bite_down=BITE) as pipe:
        connection = await Connection.connect("127.0.0.1", pipe.port, client_id="t")
        with pytest.raises(BrokerError) as refused:
            await connection.request(FETCH, fetch(), timeout_ms=SILENCE_MS)
        assert refused.value.code == ErrorCode.REQUEST_TIMED_OUT
        assert not connection.closed
        connection.close()


async def test_the_request_timeout_bounds_a_timeout_of_silence() -> None:
    """Other responses on the connection must not keep a forgotten request waiting forever."""
    async with serving({FETCH: on_fetch}) as (_, port), slow_pipe(port, bite_down=BITE) as pipe:
        connection = await Connection.connect("127.0.0.1", pipe.port, client_id="t", request_timeout_ms=2 * SILENCE_MS)
        with pytest.raises(BrokerError) as refused:
            await connection.request(FETCH, fetch(), timeout_ms=SILENCE_MS, of_silence=True)
        assert refused.value.code == ErrorCode.REQUEST_TIMED_OUT
        connection.close()


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel is asked what the peer has acknowledged")
async def test_a_request_being_sent_extends_the_timeout() -> None:
    """A request behind megabytes of others cannot be answered before they are sent."""
    async with serving({PRODUCE: on_produce}) as (_, port), slow_pipe(port, bite_up=BITE) as pipe:
        connection = await Connection.connect("127.0.0.1", pipe.port, client_id="t")
        body, records = produce(3 * BYTES)
        connection.send(PRODUCE, body, records, on_response=lambda _: None)
        body, records = produce()
        async with asyncio.timeout(BOUND_S):
            await connection.request(PRODUCE, body, records, timeout_ms=SILENCE_MS, of_silence=True)
        connection.close()


async def test_a_silent_peer_that_accepts_no_bytes_times_out() -> None:
    """Its process is paused: its kernel accepts what fits, and then no more."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        connection = await Connection.connect("127.0.0.1", silent.getsockname()[1], client_id="t")
        body, records = produce(10 * BYTES)
        with pytest.raises(BrokerError):
            await connection.request(PRODUCE, body, records, timeout_ms=SILENCE_MS, of_silence=True)
        async with asyncio.timeout(BOUND_S):
            while not connection.closed:
                await asyncio.sleep(0.01)
