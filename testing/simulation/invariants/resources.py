"""I23: the connections, tasks and files of a process are bounded by its configuration, and none is left when it has stopped.

A check raises `Violation`, with the number of its invariant, if the invariant does not hold.
"""

from __future__ import annotations

from typing import Any

from strandline.testing.simulation.invariants.ghosts import Ghosts, Process
from strandline.testing.simulation.invariants.violation import Violation

TASKS_BASE, TASKS_PER_CONNECTION = 100, 2
"""A broker has about ten tasks of its own, and one per request whose handler is a coroutine."""
FILES_BASE = 16
"""Open files apart from one per segment."""


def check_bounds(ghosts: Ghosts) -> None:
    for process in [*ghosts.live_brokers(), *ghosts.live_controllers()]:
        for name, found, bound in bounds(process):
            if found > bound:
                text = f"node {process.node} has {found} {name}, but at most {bound} are allowed"
                raise Violation("I23", text, node=process.node)


def bounds(process: Process) -> list[tuple[str, int, int]]:
    """(what, present number, limit)."""
    server = process.server
    found: list[tuple[str, int, int]] = []
    connections = 0
    for listener in server.servers:
        connections += len(listener.connections)
        found.append(("connections", len(listener.connections), listener.limits.max_connections))
        for connection in listener.connections.values():
            limit = listener.limits.max_in_flight_per_connection
            found.append(("requests in flight on one connection", connection.in_flight, limit))
    tasks = unfinished(process.loop)
    if tasks is not None:
        found.append(("tasks", len(tasks), TASKS_BASE + TASKS_PER_CONNECTION * connections))
    if getattr(server, "has_logs", False):
        budget, sessions = server.log_dirs.budget, server.replicas.sessions
        found.append(("bytes in the recent tails", budget.bytes, budget.bytes_max))
        found.append(("batches in the recent tails", len(budget.queue), budget.batches_max))
        found.append(("fetch sessions", len(sessions), sessions.slots))
        moving = [log for log_dir in server.log_dirs.dirs for log in log_dir.futures.logs.values()]
        segments = sum(len(log.segments) for log in (*server.log_dirs.logs, *moving))
        found.append(("open files", len(process.open_files), segments + FILES_BASE))
    return found


def unfinished(loop: Any) -> list[Any] | None:
    """The tasks of a process that has its own loop; None if that is unknown."""
    tasks = getattr(loop, "unfinished", None)
    return None if tasks is None else list(tasks)


def check_stopped(process: Process, allowed: int) -> None:
    """The server has stopped in order. `allowed`: tasks of the code that runs it."""
    tasks = [task for task in unfinished(process.loop) or [] if not task.cancelling()]
    if len(tasks) > allowed:
        names = sorted(task.get_coro().__qualname__ for task in tasks)
        text = f"node {process.node} has stopped, but {len(tasks) - allowed} of its tasks still run: {names}"
        raise Violation("I23", text, node=process.node)
    for listener in process.server.servers:
        left = [connection for connection in listener.connections.values() if not connection.closed]
        if left:
            text = f"node {process.node} has stopped, but still has {len(left)} open connections"
            raise Violation("I23", text, node=process.node)
