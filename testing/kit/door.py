"""One process's access to the network between the nodes: it opens connections and listens, and closes both when the process ends.

A `ProcessLoop` passes `create_connection` and `create_server` on to its door, which makes a `Wire` for each connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from strandline.testing.kit.network import Network
from strandline.testing.kit.process_loop import ProcessLoop
from strandline.testing.kit.wires import DroppingWire, Wire


class Door:
    """One process's access to the network: `ProcessLoop` uses it for `create_connection` and `create_server`."""

    def __init__(self, network: Network, node: int, real: asyncio.AbstractEventLoop) -> None:
        self.node = node
        self._network = network
        self._real = real
        self._listeners: list[Listener] = []
        self.loop: ProcessLoop
        """Set by the owner right after construction, because loop and door refer to each other."""

    async def dial(self, make: Callable[[], Any], host: str, port: int) -> tuple[Any, Any]:
        network, loop = self._network, self.loop
        other = network.listener(port)
        is_open = loop.create_future()
        network.when_open(self.node, other, lambda: loop.post(_finish, is_open))
        await is_open
        wire = Wire(network, loop, self.node, make, other)
        try:
            await loop.outside(self._real.create_connection(lambda: wire, host, port))
            return wire.transport, wire.greet()
        except BaseException:
            wire.abort()
            raise

    async def listen(self, make: Callable[[], Any], host: str, port: int, *, backlog: int = 100, **_options: Any) -> Listener:
        network, loop = self._network, self.loop

        def accept() -> Wire:
            return DroppingWire(network, loop, self.node, make)

        server = await loop.outside(
            self._real.create_server(accept, host, port, backlog=backlog, reuse_address=True, start_serving=False)
        )
        listener = Listener(server, loop)
        if loop.is_dead:
            listener.close()
        self._listeners.append(listener)
        network.note_listener(server.sockets[0].getsockname()[1], self.node)
        return listener

    def close(self) -> None:
        """Close all listeners and connections, as the kernel does when a process ends."""
        for listener in self._listeners:
            listener.close()
        for wire in self._wires():
            wire.abort()

    def update(self) -> None:
        """Re-check the process's connections after it was paused or resumed."""
        for wire in self._wires():
            wire.update()

    def _wires(self) -> list[Wire]:
        """The process's ends of its open connections."""
        return [end for end in self._network.ends if isinstance(end, Wire) and end.loop is self.loop]


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Listener:
    """The part of `asyncio.Server` that production code uses."""

    def __init__(self, server: asyncio.Server, loop: ProcessLoop) -> None:
        self._server = server
        self._loop = loop

    @property
    def sockets(self) -> Any:
        return self._server.sockets

    async def start_serving(self) -> None:
        await self._loop.outside(self._server.start_serving())

    def close(self) -> None:
        self._server.close()
