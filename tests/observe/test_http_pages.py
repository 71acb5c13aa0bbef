"""The pages of a node, and its protection against clients that are slow, too many, or do not speak HTTP."""

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
    """A health whose results the test sets."""

    name, role = "broker-1", "broker"
    is_live = is_ready = True

    def live(self) -> tuple[bool, Mapping[str, Any]]:
        return self.is_live, {"status": "live" if self.is_live else "failed"}

    def ready(self) -> tuple[bool, Mapping[str, Any]]:
        return self.is_ready, {"status": "ready" if self.is_ready else "not ready", "node": self.name}


class ServedPages:
    """Serves the pages without a node: the test sets the health, and the metrics are one gauge."""

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
async def served() -> AsyncIterator[ServedPages]:
    served = ServedPages()
    await served.server.start(served.listener)
    yield served
    await served.server.stop()
    served.thread.shutdown()


async def test_health_has_a_status_and_a_document(served: ServedPages) -> None:
    """An orchestrator reads the status, a person the document."""
    ready = await ask(served.port, "/health/ready")
    assert (ready.status, ready.json()) == (200, {"status": "ready", "node": "broker-1"})
    served.health.is_ready = False
    assert (await ask(served.port, "/health/ready")).status == 503
    assert (await ask(served.port, "/health/live")).status == 200
    served.health.is_live = False
    assert (await ask(served.port, "/health/live")).status == 503


async def test_health_is_never_cached(served: ServedPages) -> None:
    assert (await ask(served.port, "/health/ready")).headers["cache-control"] == "no-store"


async def test_metrics_have_the_requested_format(served: ServedPages) -> None:
    plain = await ask(served.port, "/metrics")
    assert plain.headers["content-type"].startswith("text/plain; version=")
    assert [family.name for family in text_string_to_metric_families(plain.text)] == ["strandline_answer"]
    openmetrics = await ask(served.port, "/metrics", headers="Accept: application/openmetrics-text; version=1.0.0\r\n")
    assert openmetrics.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert openmetrics.text.endswith("# EOF\n")


async def test_metrics_are_compressed_on_request(served: ServedPages) -> None:
    answer = await ask(served.port, "/metrics", headers="Accept-Encoding: gzip\r\n")
    assert answer.headers["content-encoding"] == "gzip"
    assert "strandline_answer 42.0" in answer.text


async def test_a_bug_in_the_metrics_is_a_500_and_one_log_line(served: ServedPages) -> None:
    """Prometheus scrapes every few seconds, so a line per request would flood the log."""

    class Broken(Collector):
        def collect(self) -> Iterator[Metric]:
            raise ZeroDivisionError

        def describe(self) -> list[Metric]:
            return []

    served.registry.register(Broken())
    with capture_logs() as lines:
        answers = [await ask(served.port, "/metrics") for _ in range(3)]
    assert [answer.status for answer in answers] == [500, 500, 500]
    assert [line["event"] for line in lines] == ["http.failed"]
    assert (await ask(served.port, "/health/ready")).status == 200


@pytest.mark.parametrize("path", ["/", *PATHS, "/nothing"])
async def test_head_has_the_head_of_get_and_no_body(served: ServedPages, path: str) -> None:
    get, head = await ask(served.port, path), await ask(served.port, path, "HEAD")
    assert (head.status, head.body) == (get.status, b"")
    assert head.headers["content-length"] == str(len(get.body))


async def test_the_root_names_the_paths(served: ServedPages) -> None:
    text = (await ask(served.port, "/")).text
    assert all(path in text for path in PATHS)


@pytest.mark.parametrize("path", ["/nothing", "/health", "/metrics/", "/../etc/passwd", "/health/ready%00", "//metrics"])
async def test_an_unknown_path_lists_the_known_ones(served: ServedPages, path: str) -> None:
    answer = await ask(served.port, path)
    assert answer.status == 404
    assert all(known in answer.text for known in PATHS)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND"])
async def test_other_methods_are_refused_and_their_bodies_not_read(served: ServedPages, method: str) -> None:
    answer = await ask(served.port, "/health/ready", method, body=b"x" * 1000)
    assert answer.status == 405
    assert answer.headers["allow"] == "GET, HEAD"


async def test_no_response_names_software_versions(served: ServedPages) -> None:
    for request in (b"GET / HTTP/1.0\r\n\r\n", b"POST / HTTP/1.0\r\n\r\n", b"GET /x HTTP/1.0\r\n\r\n", b"nonsense\r\n\r\n"):
        assert parse(await exchange(served.port, request)).headers["server"] == "Strandline"


async def test_a_connection_serves_many_requests(served: ServedPages) -> None:
    """Prometheus keeps its connection open between scrapes."""
    request = b"GET /health/ready HTTP/1.1\r\nHost: x\r\n\r\n"
    answers = await exchange(served.port, request * 3 + request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
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
async def test_malformed_requests_are_logged_once_a_minute(served: ServedPages, data: bytes) -> None:
    with capture_logs() as lines:
        for _ in range(3):
            assert parse(await exchange(served.port, data)).status == 400
    assert [line["event"] for line in lines] == ["http.bad_request"]
    assert (await ask(served.port, "/health/ready")).status == 200


async def test_a_slow_request_is_cut_off(served: ServedPages, monkeypatch: pytest.MonkeyPatch) -> None:
    """Single bytes (slowloris) do not extend the deadline, which is for the whole request."""
    monkeypatch.setattr(pages, "FIRST_REQUEST_S", 0.2)
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)

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


async def test_an_idle_connection_is_closed(served: ServedPages, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "NEXT_REQUEST_S", 0.2)
    async with asyncio.timeout(5):
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await read_to_the_end(reader)).startswith(b"HTTP/1.1 200")
        writer.close()


async def test_silent_connections_give_way_to_active_ones(served: ServedPages, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection that was silent longest is closed first, and the number of connections stays bounded."""
    monkeypatch.setattr(pages, "CONNECTIONS_MAX", 8)
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    request = b"GET /health/ready HTTP/1.1\r\nHost: x\r\n\r\n"
    silent = []
    async with asyncio.timeout(10):
        for _ in range(10):
            silent += [await asyncio.open_connection("127.0.0.1", served.port) for _ in range(5)]
            writer.write(request)
            assert (await reader.readuntil(b"}\n")).startswith(b"HTTP/1.1 200")
            assert len(served.server._connections) <= 8
        assert (await ask(served.port, "/health/ready")).status == 200
    writer.close()
    for _, other in silent:
        other.close()


async def test_stopping_closes_every_connection(served: ServedPages) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    assert (await ask(served.port, "/")).status == 200
    await served.server.stop()
    async with asyncio.timeout(5):
        assert await read_to_the_end(reader) == b""
    writer.close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", served.port)
