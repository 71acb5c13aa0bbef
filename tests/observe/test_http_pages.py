"""The pages of a node, and what its HTTP port makes of clients that are slow, many, or no HTTP clients at all."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from http_world import ask, exchange, parse, read_to_the_end
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from structlog.testing import capture_logs

from strandline.observe import pages
from strandline.observe.pages import PATHS, HttpServer


class SomeHealth:
    """Says what it is told to."""

    name, role = "broker-1", "broker"
    is_live = is_ready = True

    def live(self) -> tuple[bool, Mapping[str, Any]]:
        return self.is_live, {"status": "live" if self.is_live else "failed"}

    def ready(self) -> tuple[bool, Mapping[str, Any]]:
        return self.is_ready, {"status": "ready" if self.is_ready else "not ready", "node": self.name}


class World:
    def __init__(self) -> None:
        self.health = SomeHealth()
        self.registry = CollectorRegistry()
        Gauge("strandline_answer", "What it is.", registry=self.registry).set(42)
        self.thread = ThreadPoolExecutor(1)
        self.server = HttpServer(self.health, self.registry, self.thread)  # type: ignore[arg-type]
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)
        self.listener = listener
        self.port = int(listener.getsockname()[1])


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    await world.server.start(world.listener)
    yield world
    await world.server.stop()
    world.thread.shutdown()


async def test_health_is_told_by_the_status_and_by_a_document(world: World) -> None:
    """An orchestrator reads the one, a person the other."""
    ready = await ask(world.port, "/health/ready")
    assert (ready.status, ready.json()) == (200, {"status": "ready", "node": "broker-1"})
    world.health.is_ready = False
    assert (await ask(world.port, "/health/ready")).status == 503
    assert (await ask(world.port, "/health/live")).status == 200
    world.health.is_live = False
    assert (await ask(world.port, "/health/live")).status == 503


async def test_health_is_never_kept_by_a_proxy(world: World) -> None:
    assert (await ask(world.port, "/health/ready")).headers["cache-control"] == "no-store"


async def test_metrics_come_in_the_text_format_and_in_openmetrics_for_who_asks(world: World) -> None:
    plain = await ask(world.port, "/metrics")
    assert plain.headers["content-type"].startswith("text/plain; version=")
    assert [family.name for family in text_string_to_metric_families(plain.text)] == ["strandline_answer"]
    openmetrics = await ask(world.port, "/metrics", headers="Accept: application/openmetrics-text; version=1.0.0\r\n")
    assert openmetrics.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert openmetrics.text.endswith("# EOF\n")


async def test_metrics_are_compressed_for_who_takes_it(world: World) -> None:
    answer = await ask(world.port, "/metrics", headers="Accept-Encoding: gzip\r\n")
    assert answer.headers["content-encoding"] == "gzip"
    assert "strandline_answer 42.0" in answer.text


async def test_a_bug_in_the_metrics_is_an_answer_and_one_line(world: World) -> None:
    """Prometheus asks every few seconds, for ever."""

    class Broken(Collector):
        def collect(self) -> Iterator[Metric]:
            raise ZeroDivisionError

        def describe(self) -> list[Metric]:
            return []

    world.registry.register(Broken())
    with capture_logs() as lines:
        answers = [await ask(world.port, "/metrics") for _ in range(3)]
    assert [answer.status for answer in answers] == [500, 500, 500]
    assert [line["event"] for line in lines] == ["http.failed"]
    assert (await ask(world.port, "/health/ready")).status == 200


@pytest.mark.parametrize("path", ["/", *PATHS, "/nothing"])
async def test_head_has_the_head_of_get_and_no_body(world: World, path: str) -> None:
    get, head = await ask(world.port, path), await ask(world.port, path, "HEAD")
    assert (head.status, head.body) == (get.status, b"")
    assert head.headers["content-length"] == str(len(get.body))


async def test_the_root_names_the_paths(world: World) -> None:
    text = (await ask(world.port, "/")).text
    assert all(path in text for path in PATHS)


@pytest.mark.parametrize("path", ["/nothing", "/health", "/metrics/", "/../etc/passwd", "/health/ready%00", "//metrics"])
async def test_any_other_path_is_answered_with_those_that_are_there(world: World, path: str) -> None:
    answer = await ask(world.port, path)
    assert answer.status == 404
    assert all(known in answer.text for known in PATHS)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND"])
async def test_other_methods_are_refused_and_their_bodies_not_read(world: World, method: str) -> None:
    answer = await ask(world.port, "/health/ready", method, body=b"x" * 1000)
    assert answer.status == 405
    assert answer.headers["allow"] == "GET, HEAD"


async def test_no_answer_tells_what_the_node_is_made_of(world: World) -> None:
    for request in (b"GET / HTTP/1.0\r\n\r\n", b"POST / HTTP/1.0\r\n\r\n", b"GET /x HTTP/1.0\r\n\r\n", b"nonsense\r\n\r\n"):
        assert parse(await exchange(world.port, request)).headers["server"] == "Strandline"


async def test_many_requests_on_one_connection(world: World) -> None:
    """Prometheus keeps its connection."""
    request = b"GET /health/ready HTTP/1.1\r\nHost: x\r\n\r\n"
    answers = await exchange(world.port, request * 3 + request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    assert answers.count(b"HTTP/1.1 200 OK") == 4


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x00\x00\x14\x95\x12\x00\x01\xa1x\x90" + bytes(20),
        b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"x" * 20_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"".join(b"H%d: x\r\n" % i for i in range(1000)) + b"\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100) + b"\r\n\r\n",
    ],
    ids=["our own protocol", "a long path", "a long header", "many headers", "two lengths", "tls"],
)
async def test_what_is_no_proper_request_is_refused_in_one_line_a_minute(world: World, data: bytes) -> None:
    with capture_logs() as lines:
        for _ in range(3):
            assert parse(await exchange(world.port, data)).status == 400
    assert [line["event"] for line in lines] == ["http.bad_request"]
    assert (await ask(world.port, "/health/ready")).status == 200


async def test_a_client_that_takes_for_ever_to_ask_is_cut_off(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte now and then (slowloris) does not help it: the whole request has to be there."""
    monkeypatch.setattr(pages, "FIRST_REQUEST_S", 0.2)
    reader, writer = await asyncio.open_connection("127.0.0.1", world.port)

    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nA: ")

    async def drip() -> None:
        while True:
            writer.write(b"a")
            await asyncio.sleep(0.02)

    dripping = asyncio.create_task(drip())
    async with asyncio.timeout(5):
        assert await read_to_the_end(reader) == b""
    dripping.cancel()
    await asyncio.gather(dripping, return_exceptions=True)
    writer.close()


async def test_a_connection_on_which_nothing_is_asked_any_more_is_closed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "NEXT_REQUEST_S", 0.2)
    async with asyncio.timeout(5):
        reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
        writer.write(b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await read_to_the_end(reader)).startswith(b"HTTP/1.1 200")
        writer.close()


async def test_however_many_connect_those_who_ask_are_answered(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The silent ones give way, the longest silent first; the number of connections is bounded all the time."""
    monkeypatch.setattr(pages, "CONNECTIONS_MAX", 8)
    reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
    request = b"GET /health/ready HTTP/1.1\r\nHost: x\r\n\r\n"
    silent = []
    async with asyncio.timeout(10):
        for _ in range(10):
            silent += [await asyncio.open_connection("127.0.0.1", world.port) for _ in range(5)]
            writer.write(request)
            assert (await reader.readuntil(b"}\n")).startswith(b"HTTP/1.1 200")
            assert len(world.server._connections) <= 8
        assert (await ask(world.port, "/health/ready")).status == 200
    writer.close()
    for _, other in silent:
        other.close()


async def test_stopping_closes_every_connection(world: World) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
    assert (await ask(world.port, "/")).status == 200
    await world.server.stop()
    async with asyncio.timeout(5):
        assert await read_to_the_end(reader) == b""
    writer.close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", world.port)
