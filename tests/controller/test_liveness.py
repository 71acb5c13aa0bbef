"""A broker whose heartbeat connection breaks is probed, and fenced only if it is dead."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from controller_world import ControllerWorld, registration
from handled_request import HandledConnection
from passing_time import let_pass
from structlog.testing import capture_logs

from strandline.controller.liveness import BrokerLiveness, Probe, probe_broker
from strandline.controller.metadata.image import BrokerRegistration
from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.common import Listener
from strandline.protocol.rpc.server import Server


class Scene:
    """Two brokers with topic t on both, led by 1, on the running loop's time. `probes` are the results of the next probes."""

    def __init__(self, *, grace_ms: int = 20, session_timeout_ms: int = 3000) -> None:
        self.loop = asyncio.get_running_loop()
        self.world = ControllerWorld(session_timeout_ms=session_timeout_ms)
        self.world.controller.now = lambda: self.loop.time()
        self.probes: list[Probe] = []
        self.probed: list[int] = []
        self.during_probe: Callable[[], None] = lambda: None
        self.liveness = BrokerLiveness(
            self.world.controller, grace_ms=grace_ms, session_timeout_ms=session_timeout_ms, probe=self.probe
        )
        self.world.controller.timers.append(self.liveness)
        self.connections: dict[int, HandledConnection] = {}
        for broker_id in (1, 2):
            self.world.start_broker(broker_id)
            self.beat(broker_id)
        self.world.create("t", [[1, 2]])

    async def probe(self, broker: BrokerRegistration) -> Probe:
        self.probed.append(broker.broker_id)
        await asyncio.sleep(0)
        self.during_probe()
        return self.probes.pop(0)

    def beat(self, broker_id: int, connection: HandledConnection | None = None) -> None:
        connection = connection or self.connections.setdefault(broker_id, HandledConnection())
        self.connections[broker_id] = connection
        self.world.heartbeat(broker_id)
        self.liveness.on_heartbeat(connection, broker_id, self.world.epoch(broker_id))

    def fenced(self, broker_id: int = 1) -> bool:
        self.world.commit()
        return self.world.image.brokers[broker_id].fenced

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                await asyncio.sleep(0.002)

    async def settled(self) -> None:
        """Wait until every probe has ended."""
        await self.until(lambda: not self.liveness._tasks)


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    scene = Scene()
    yield scene
    await scene.liveness.stop()


async def test_a_dead_broker_is_fenced_after_the_grace(scene: Scene) -> None:
    scene.probes = [Probe.DEAD]
    started = scene.loop.time()
    scene.liveness.on_connection_lost(scene.connections[1])
    await scene.until(scene.fenced)
    assert scene.world.partition("t").leader == 2
    assert 0.02 <= scene.loop.time() - started < 1.5
    assert scene.world.register(1, incarnation=2), "its successor may register at once"


@pytest.mark.parametrize(
    "found",
    [[Probe.ALIVE], [Probe.SILENT], [Probe.DYING, Probe.DYING], [Probe.DYING, Probe.SILENT], [Probe.UNREACHABLE, Probe.ALIVE]],
)
async def test_the_session_decides_when_the_probe_proves_no_death(scene: Scene, found: list[Probe]) -> None:
    scene.probes = list(found)
    scene.liveness.on_connection_lost(scene.connections[1])
    await scene.settled()
    assert not scene.fenced()
    assert scene.probes == []


GONE = [
    [Probe.UNREACHABLE, Probe.UNREACHABLE],
    [Probe.UNREACHABLE, Probe.NAME_GONE],
    [Probe.NAME_GONE, Probe.NAME_GONE],
    [Probe.DYING, Probe.UNREACHABLE],
]


@pytest.mark.parametrize("found", GONE)
async def test_a_broker_that_is_gone_with_its_host_is_fenced(scene: Scene, found: list[Probe]) -> None:
    """A killed container: the kernel closes its connections, then its address and its name vanish. No host remains that could
    refuse a connection."""
    scene.probes = list(found)
    scene.liveness.on_connection_lost(scene.connections[1])
    await scene.until(scene.fenced)
    assert scene.probes == []
    assert scene.world.partition("t").leader == 2


@pytest.mark.parametrize("found", [Probe.UNREACHABLE, Probe.NAME_GONE])
async def test_a_connection_that_merely_timed_out_proves_nothing(scene: Scene, found: Probe) -> None:
    """The peer has not closed it: the network may be interrupted, which is what the session timeout is for."""
    scene.connections[1].closed_by_peer = False
    scene.probes = [found]
    scene.liveness.on_connection_lost(scene.connections[1])
    await scene.settled()
    assert not scene.fenced()
    assert scene.probes == []


async def test_a_dying_process_is_probed_twice(scene: Scene) -> None:
    """Its port may stay open a moment longer than its connections."""
    scene.probes = [Probe.DYING, Probe.DEAD]
    scene.liveness.on_connection_lost(scene.connections[1])
    await scene.until(scene.fenced)


async def test_a_broker_that_is_back_within_the_grace_is_not_fenced(scene: Scene) -> None:
    scene.probes = [Probe.DEAD]
    scene.during_probe = lambda: scene.beat(1, HandledConnection())
    scene.liveness.on_connection_lost(scene.connections[1])
    await scene.settled()
    assert not scene.fenced()


async def test_losing_an_older_connection_means_nothing(scene: Scene) -> None:
    old = scene.connections[1]
    scene.beat(1, HandledConnection())
    scene.liveness.on_connection_lost(old)
    scene.liveness.on_connection_lost(HandledConnection())
    await scene.settled()
    assert scene.probed == []


async def test_a_heartbeat_that_was_refused_tags_no_connection(scene: Scene) -> None:
    """F15: an unknown peer must not end a broker's session when it closes its own connection."""
    stranger = HandledConnection()
    scene.liveness.on_heartbeat(stranger, 1, scene.world.epoch(1) - 1)
    scene.liveness.on_connection_lost(stranger)
    await scene.settled()
    assert (stranger.tag, scene.probed) == (None, [])


async def test_a_controller_that_has_resigned_fences_no_broker(scene: Scene) -> None:
    scene.probes = [Probe.DEAD]
    scene.during_probe = lambda: scene.world.controller.on_resign(1)
    scene.liveness.on_connection_lost(scene.connections[1])
    await scene.settled()
    assert not scene.fenced()


async def test_a_broker_that_stopped_in_order_is_not_probed(scene: Scene) -> None:
    scene.world.heartbeat(2, want_shut_down=True)
    scene.liveness.on_connection_lost(scene.connections[2])
    await scene.settled()
    assert scene.probed == []


async def test_a_silent_broker_is_fenced_by_the_timer_at_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """One timer for all sessions; a renewal postpones the deadline without touching the timer."""
    scene = Scene(session_timeout_ms=60_000)
    for _ in range(8):
        scene.beat(2)
        assert not scene.fenced(1)
        let_pass(monkeypatch, 7_000)
        await asyncio.sleep(0)
    scene.beat(2)
    let_pass(monkeypatch, 3_900)  # not past the deadline: a timer that is late means that the controller was paused
    await scene.until(scene.fenced)
    assert not scene.fenced(2)
    let_pass(monkeypatch, 55_900)
    await scene.until(lambda: scene.fenced(2))
    assert scene.liveness._timer is None
    await scene.liveness.stop()


async def test_a_controller_that_was_paused_fences_no_broker() -> None:
    """After a SIGSTOP the timer fires before the heartbeats in the sockets are read."""
    scene = Scene(session_timeout_ms=3000)
    later = 3000 / 1000 * 4
    scene.world.controller.now = lambda: scene.loop.time() + later
    scene.liveness._on_timer()
    assert not scene.fenced(1)
    assert not scene.fenced(2)
    await scene.liveness.stop()


@pytest.mark.parametrize("late_s", [0.05, 0.8, 1.4])
async def test_a_late_timer_waits_for_delayed_heartbeats(late_s: float) -> None:
    """The whole cluster was stopped for a little longer than a session, and the timer was due shortly before it continued: the
    delay of the timer does not show how long the pause was. The brokers' heartbeats are in flight."""
    scene = Scene(session_timeout_ms=3000)
    at = scene.liveness._planned + late_s
    scene.world.controller.now = lambda: at
    scene.liveness._on_timer()
    assert not scene.fenced(1)
    assert not scene.fenced(2)
    assert scene.liveness._timer is not None
    scene.beat(2)
    at += 0.5
    scene.liveness._timer.cancel()
    scene.liveness._on_timer()
    assert scene.fenced(1), "the moment is granted once: a busy controller must not wait for a dead broker for ever"
    assert not scene.fenced(2)
    await scene.liveness.stop()


async def test_a_new_active_controller_probes_brokers_that_did_not_connect() -> None:
    """A broker that died together with the last controller is fenced long before a session timeout."""
    scene = Scene(session_timeout_ms=600)
    scene.world.controller.on_resign(1)
    scene.probes = [Probe.DEAD]
    scene.world.become_active(epoch=2)
    scene.beat(2, HandledConnection())
    started = scene.loop.time()
    with capture_logs() as lines:
        await scene.until(scene.fenced)
    assert scene.loop.time() - started < 0.55
    assert scene.probed == [1]
    [reason] = [line["reason"] for line in lines if line["event"] == "broker.fencing"]
    assert reason == "it has no connection to this controller, and its port refuses connections"
    await scene.liveness.stop()


@pytest.mark.parametrize(
    ("found", "fenced"),
    [
        ([Probe.NAME_GONE, Probe.NAME_GONE], True),
        ([Probe.NAME_GONE, Probe.UNREACHABLE], False),
        ([Probe.NAME_GONE, Probe.SILENT], False),
        ([Probe.UNREACHABLE], False),
    ],
)
async def test_a_new_active_controller_fences_a_broker_whose_name_is_gone(
    monkeypatch: pytest.MonkeyPatch, found: list[Probe], fenced: bool
) -> None:
    """The controller never had a connection to the broker, so it does not know how that was lost. A silent host may only be cut
    off for a moment; a name that is unknown twice, half a second apart, is that of a removed container."""
    monkeypatch.setattr("strandline.controller.liveness.NAME_GONE_MS", 60)
    scene = Scene()
    scene.world.controller.on_resign(1)
    scene.probes = list(found)
    scene.world.become_active(epoch=2)
    scene.beat(2, HandledConnection())
    await scene.settled()
    assert (scene.fenced(), scene.probes) == (fenced, [])
    await scene.liveness.stop()


async def test_a_registration_finds_out_that_the_predecessor_is_dead(scene: Scene) -> None:
    """The first probe of the new active controller found the broker alive, then the broker was killed before it had connected.
    Its next process must not wait for the end of a session that was only granted."""
    scene.world.controller.on_resign(1)
    scene.probes = [Probe.ALIVE, Probe.SILENT, Probe.DEAD]
    scene.world.become_active(epoch=2)
    scene.beat(2, HandledConnection())
    await scene.settled()
    for _ in range(2):
        refusal = scene.world.send(apis.BROKER_REGISTRATION, registration(1, 2)).answers[0]
        assert isinstance(refusal, BrokerError)
        assert refusal.code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
        scene.liveness.on_duplicate(1)
        scene.liveness.on_duplicate(1)
        await scene.settled()
    assert scene.probed == [1, 1, 1], "one at a time"
    assert scene.fenced()
    assert scene.world.register(1, incarnation=2)


async def test_a_broker_with_a_connection_is_not_contested(scene: Scene) -> None:
    """A second process with its id, which retries forever, must not get a live broker fenced when the controller changes."""
    scene.world.controller.on_resign(1)
    scene.world.become_active(epoch=2)
    scene.beat(1, HandledConnection())
    scene.beat(2, HandledConnection())
    scene.liveness.on_duplicate(1)
    await scene.settled()
    assert (scene.probed, scene.fenced()) == ([], False)


async def test_a_contested_broker_that_is_not_dead_keeps_its_session(scene: Scene) -> None:
    scene.world.controller.on_resign(1)
    scene.probes = [Probe.ALIVE, Probe.UNREACHABLE]
    scene.world.become_active(epoch=2)
    scene.beat(2, HandledConnection())
    await scene.settled()
    scene.liveness.on_duplicate(1)
    await scene.settled()
    assert (scene.probes, scene.fenced()) == ([], False)


# -- the probe itself ---------------------------------------------------------------------------------------------------


def broker_at(port: int, incarnation: bytes = b"i" * 16) -> BrokerRegistration:
    return BrokerRegistration(1, 5, incarnation, (Listener("PLAINTEXT", "127.0.0.1", port),), None, False, False)


async def test_the_probe_distinguishes_the_registered_process_from_another() -> None:
    server = Server({}, role="broker", node_id=1, cluster_id="c", incarnation_id=b"i" * 16)
    port = await server.start("127.0.0.1", 0)
    assert await probe_broker(broker_at(port)) is Probe.ALIVE
    assert await probe_broker(broker_at(port, b"j" * 16)) is Probe.DEAD
    await server.stop()
    assert await probe_broker(broker_at(port)) is Probe.DEAD


@pytest.mark.parametrize(
    ("hosts", "found"), [(("127.0.0.1", "127.0.0.2"), Probe.DEAD), (("127.0.0.1", "::2"), Probe.UNREACHABLE)]
)
async def test_a_host_of_several_addresses_is_dead_when_all_of_them_refuse(
    monkeypatch: pytest.MonkeyPatch, hosts: tuple[str, ...], found: Probe
) -> None:
    """The event loop joins the errors of several addresses into one without an errno; `localhost` often has two addresses. The
    broker may listen on an address that cannot be reached (`::2` belongs to no host)."""
    resolved = [address for host in hosts for address in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

    def getaddrinfo(host: str, port: int, *args: object, **kwargs: object) -> list[Any]:
        return [(family, kind, proto, name, (address[0], port)) for family, kind, proto, name, address in resolved]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    listener = Listener("PLAINTEXT", "a-host-of-several-addresses", port)
    assert await probe_broker(BrokerRegistration(1, 5, b"i" * 16, (listener,), None, False, False)) is found


async def test_the_probe_distinguishes_a_closed_connection_from_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strandline.controller.liveness.PROBE_ANSWER_MS", 50)

    async def listen(on_connection: Callable[[asyncio.StreamWriter], None]) -> tuple[asyncio.Server, int]:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            on_connection(writer)

        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        return server, server.sockets[0].getsockname()[1]

    writers: list[asyncio.StreamWriter] = []
    closing, closing_port = await listen(lambda writer: writer.close())
    silent, silent_port = await listen(writers.append)
    assert await probe_broker(broker_at(closing_port)) is Probe.DYING
    assert await probe_broker(broker_at(silent_port)) is Probe.SILENT
    for writer in writers:
        writer.close()
    for server in (closing, silent):
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), Probe.NAME_GONE),
        (socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"), Probe.UNREACHABLE),
    ],
)
async def test_the_probe_distinguishes_an_unknown_name_from_a_dead_resolver(
    monkeypatch: pytest.MonkeyPatch, error: OSError, found: Probe
) -> None:
    def getaddrinfo(*args: object, **kwargs: object) -> list[Any]:
        raise error

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    listener = Listener("PLAINTEXT", "a-container-that-was", 9092)
    assert await probe_broker(BrokerRegistration(1, 5, b"i" * 16, (listener,), None, False, False)) is found


async def test_the_probe_waits_for_no_resolver(monkeypatch: pytest.MonkeyPatch) -> None:
    """A resolver may take ten seconds to answer that a name does not exist."""
    answered = threading.Event()

    def getaddrinfo(*args: object, **kwargs: object) -> list[Any]:
        answered.wait(10)
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    listener = Listener("PLAINTEXT", "a-name-that-takes-long", 9092)
    started = asyncio.get_running_loop().time()
    try:
        assert await probe_broker(BrokerRegistration(1, 5, b"i" * 16, (listener,), None, False, False)) is Probe.UNREACHABLE
        assert asyncio.get_running_loop().time() - started < 5
    finally:
        answered.set()


async def test_the_probe_uses_the_inter_broker_listener() -> None:
    """The first listener of a registration is the one that brokers use among themselves. Another one may be advertised under a
    name that means the controller's own host here (`localhost`)."""
    server = Server({}, role="broker", node_id=1, cluster_id="c", incarnation_id=b"i" * 16)
    port = await server.start("127.0.0.1", 0)
    listeners = (Listener("INTERNAL", "127.0.0.1", port), Listener("EXTERNAL", "localhost", 1))
    assert await probe_broker(BrokerRegistration(1, 5, b"i" * 16, listeners, None, False, False)) is Probe.ALIVE
    await server.stop()
