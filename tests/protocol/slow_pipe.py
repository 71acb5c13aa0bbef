"""A slow link: forwards bytes in small pieces, with a pause after each that is proportional to its size."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

PAUSE_S = 0.02


class SlowPipe:
    def __init__(self, port: int, *, bite_up: int, bite_down: int) -> None:
        self._target = port
        self._bites = bite_up, bite_down
        self._tasks: dict[asyncio.Task[None], None] = {}
        self.connections = 0
        self.port = 0
        self._listener: asyncio.Server | None = None

    async def start(self) -> None:
        listening = socket.socket()
        # The kernel must not buffer bytes that the line has not forwarded yet.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
        listening.bind(("127.0.0.1", 0))
        self.port = listening.getsockname()[1]
        self._listener = await asyncio.start_server(self._on_connection, sock=listening, limit=16_384)

    async def stop(self) -> None:
        assert self._listener is not None
        self._listener.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._target, limit=16_384)
        for source, target, bite in ((reader, there_writer, self._bites[0]), (there_reader, writer, self._bites[1])):
            task = asyncio.get_running_loop().create_task(self._carry(source, target, bite))
            self._tasks[task] = None
            task.add_done_callback(self._tasks.pop)

    async def _carry(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, bite: int) -> None:
        try:
            while data := await source.read(bite):
                target.write(data)
                await target.drain()
                await asyncio.sleep(PAUSE_S * len(data) / bite)
        except ConnectionError:
            pass
        finally:
            target.close()


@contextlib.asynccontextmanager
async def slow_pipe(port: int, *, bite_up: int = 1 << 20, bite_down: int = 1 << 20) -> AsyncIterator[SlowPipe]:
    pipe = SlowPipe(port, bite_up=bite_up, bite_down=bite_down)
    await pipe.start()
    try:
        yield pipe
    finally:
        await pipe.stop()
