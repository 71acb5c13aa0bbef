"""A process that closes a connection is done with it at once, whatever became of the way."""

from __future__ import annotations

import asyncio
from typing import Any

from strandline.testing.simulation.world import World


class _Peer(asyncio.BufferedProtocol):
    def __init__(self) -> None:
        self.lost: list[Exception | None] = []
        self.got = b""
        self._buffer = bytearray(1 << 16)

    def get_buffer(self, sizehint: int) -> Any:
        return memoryview(self._buffer)

    def buffer_updated(self, nbytes: int) -> None:
        self.got += self._buffer[:nbytes]

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)


async def _connected(world: World) -> tuple[Any, _Peer, _Peer]:
    served = _Peer()
    server, client = world.add_machine(1, "server"), world.add_machine(2, "client")
    server_loop, _, _ = server.boot()
    client_loop, _, _ = client.boot()
    await world.join(server.spawn(server_loop.create_server(lambda: served, server.address, 9000, start_serving=True)))
    transport, peer = await world.join(client.spawn(client_loop.create_connection(_Peer, server.address, 9000)))
    return transport, peer, served


def test_closing_over_a_cut_link_does_not_wait_for_the_link() -> None:
    """What was written is the kernel's to deliver. A process that waited for it would hold pending requests for half a minute."""

    async def story() -> None:
        transport, peer, served = await _connected(world)
        world.network.cut(2, 1)
        transport.write(b"the last words")
        transport.close()
        await world.sleep(0.01)
        assert peer.lost == [None]
        world.network.mend(2, 1)
        await world.sleep(3)
        assert served.got == b"the last words"
        assert len(served.lost) == 1
        assert len(peer.lost) == 1
        assert world.network.connections == 0

    world = World(1)
    world.run(story())
    world.close()


def test_what_arrives_for_a_process_that_closed_resets_the_connection() -> None:
    async def story() -> None:
        transport, peer, served = await _connected(world)
        world.network.cut(2, 1)
        transport.write(b"never sent")
        transport.close()
        served_transport = next(t for t in world.network._transports.values() if t.machine.id == 1)
        with world.within(served_transport.loop):
            served_transport.write(b"for nobody")
        await world.sleep(1)
        world.network.mend(2, 1)
        with world.within(served_transport.loop):
            served_transport.write(b"again")
        await world.sleep(3)
        assert served.got == b""
        assert isinstance(served.lost[0], ConnectionResetError)
        assert peer.lost == [None]

    world = World(2)
    world.run(story())
    world.close()
