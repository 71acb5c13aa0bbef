"""I17: every operation that waits in a broker is answered, once, in time, and for the right reason.

I15 (`watermark.py`) checks that a success is true when it is sent; the rest is here. Deadlines are judged by the timer that must
exist for them: the event loop promises that a due timer fires, and a process that was paused may be late.

A check raises `Violation`, with the number of its invariant, if the invariant does not hold.
"""

from __future__ import annotations

from typing import Any

from strandline.broker.produce.produce_handler import DelayedProduce
from strandline.testing.simulation.invariants.ghosts import Ghosts, Process
from strandline.testing.simulation.invariants.violation import Violation


def check_answered_once(node: int, request: Any) -> None:
    """Check that a request that is about to be answered was not answered before."""
    if request.is_answered and not request.connection.closed:
        raise Violation("I17", f"broker {node} answers {request!r} a second time", node=node)


def check_deadlines(ghosts: Ghosts) -> None:
    for process in ghosts.live_brokers():
        if getattr(process.server, "has_logs", False):
            check_timer(process.node, process.server.replicas.purgatory)
            _check_waiters(process)


def check_timer(node: int, purgatory: Any) -> None:
    """The earliest deadline has a timer that is not later."""
    for timeout_ms, queue in purgatory.queues.items():
        operation = next(iter(queue), None)
        if operation is None:
            continue
        if operation.is_completed:
            raise Violation("I17", f"broker {node} keeps a completed operation (timeout {timeout_ms} ms)", node=node)
        if purgatory.timer_due > operation.deadline:
            text = (
                f"broker {node} has no timer for an operation (timeout {timeout_ms} ms) at its deadline {operation.deadline:.3f}"
            )
            raise Violation("I17", text, node=node)


def _check_waiters(process: Process) -> None:
    """No operation that was answered still waits for a high watermark."""
    for partition in process.server.replicas.partitions.values():
        if any(waiter.is_completed for waiter in partition.waiters.operations()):
            text = f"{partition.topic}-{partition.key[1]}: an answered produce request still waits at broker {process.node}"
            raise Violation("I17", text, partition=f"{partition.topic}-{partition.key[1]}", node=process.node)


def check_idle(ghosts: Ghosts) -> None:
    """When no produce request is open, the lists of waiting operations are empty."""
    for process in ghosts.live_brokers():
        if not process.server.has_logs:
            continue
        replicas = process.server.replicas
        waiting = sum(len(partition.waiters) for partition in replicas.partitions.values())
        parked = sum(isinstance(operation, DelayedProduce) for operation in replicas.purgatory.take_all())
        if waiting or parked:
            text = f"broker {process.node} is idle, but keeps {parked} delayed produce requests and {waiting} watchers"
            raise Violation("I17", text, node=process.node)
