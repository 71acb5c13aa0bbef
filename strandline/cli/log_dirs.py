"""`strandline log-dirs describe`: the bytes on the brokers' disks, by directory, topic and replica. `log-dirs move`: moves
replicas to another directory of their broker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strandline.cli.amounts import show_bytes
from strandline.cli.common import (
    CONNECT_TIMEOUT_MS,
    DEFAULT_BOOTSTRAP,
    ERROR,
    Bootstrap,
    new_app,
    run,
)
from strandline.cli.output import Form, Output, Table, View, show
from strandline.cli.watch import Watch, present
from strandline.protocol.errors import UsageError
from strandline.reach import reach

if TYPE_CHECKING:
    from strandline.client import Admin, LogDirDescription, LogDirMoveResult, ReplicaInfo, TopicPartition

TIMEOUT_MS = 2000
"""Short, because a person waits, and a broker that is down never answers."""
MOVE_TIMEOUT_MS = 10_000

Found = Mapping[int, "Sequence[LogDirDescription] | None"]
"""Broker -> its directories; None if it did not answer."""

app = new_app("Show the space that logs take on the brokers' disks, and move replicas to other disks.")


@app.callback()
def _group() -> None:
    """Show the space that logs take on the brokers' disks, and move replicas to other disks."""


@app.command()
def describe(
    topic: Annotated[
        list[str] | None, typer.Option("--topic", "-t", metavar="TOPIC", help="Only this topic; may be given several times.")
    ] = None,
    broker: Annotated[
        list[int] | None, typer.Option("--broker", metavar="ID", help="Only this broker; may be given several times.")
    ] = None,
    partitions: Annotated[bool, typer.Option("--partitions", help="Show every replica too.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = Form.table,
    watch: Watch = None,
) -> None:
    """Show the bytes of the logs by directory and topic; with --partitions, by replica. If a broker does not answer, the others
    are shown, and the exit code is 1.

    "lag" is how many records a replica lacks up to the high watermark that it knows. A replica that moves to another directory
    has a row for its copy there, with the records that the copy lacks.
    """

    async def ask() -> View:
        return _view(await _ask(bootstrap, topic, broker), partitions)

    present(ask, output, watch)


def _view(found: Found, partitions: bool) -> View:
    parts = [Table(("broker", "directory", "replicas", "bytes", "state"), _directories(found))]
    if topics := _topics(found):
        parts.append(Table(("topic", "replicas", "bytes", "largest lag"), topics))
    if partitions and (replicas := _replicas(found)):
        parts.append(Table(("broker", "topic", "partition", "bytes", "lag"), replicas))
    if moves := copies(found):
        parts.append(Table(("broker", "moving", "to", "copied", "records left"), moves))
    silent = [str(broker_id) for broker_id, dirs in found.items() if dirs is None]
    names = f"broker{'s' if len(silent) > 1 else ''} {', '.join(silent)}"
    remarks = [f"{names} did not answer: the sizes there are not known"] if silent else []
    return View(document(found), parts, remarks, ERROR if silent else 0)


@app.command()
def move(
    replicas: Annotated[list[str], typer.Argument(metavar="TOPIC:PARTITION...", help="The replicas to move, such as orders:0.")],
    broker: Annotated[int, typer.Option("--broker", metavar="ID", help="The broker that has the replicas.")],
    to: Annotated[str, typer.Option("--to", metavar="DIR", help="One of the broker's log directories (log.dirs).")],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = Form.table,
) -> None:
    """Move replicas to another log directory of their broker. Clients are not interrupted: each replica is served from its
    present directory until its copy has caught up. The command returns when the moves have begun; `strandline log-dirs describe`
    shows how far they are.

    The present directory as DIR cancels a move. The broker's key replica.alter.log.dirs.io.max.bytes.per.second limits the rate.
    """
    wanted = [_replica(text) for text in replicas]
    results = run(_move(bootstrap, broker, wanted, to))
    show(_moved(results, to, broker), output)


def _moved(results: list[LogDirMoveResult], to: str, broker: int) -> View:
    """The moves that have begun, and a remark about the first one that failed."""
    failed = [result for result in results if result.code]
    begun = [
        f"{result.partition.topic}:{result.partition.partition} moves to {to} on broker {broker}"
        for result in results
        if not result.code
    ]
    document = {"results": [_result_json(result) for result in results]}
    if not failed:
        return View(document, begun)
    first = failed[0]
    more = f" ({len(failed) - 1} more failed)" if len(failed) > 1 else ""
    name = f"{first.partition.topic}:{first.partition.partition}"
    return View(document, begun, [f"{name} does not move: {first.message or first.code.name}{more}"], ERROR)


def _result_json(result: LogDirMoveResult) -> dict[str, Any]:
    error = result.code.name if result.code else None
    return {**result.partition._asdict(), "error": error, "reason": result.message}


def _replica(text: str) -> tuple[str, int]:
    topic, separator, number = text.rpartition(":")
    if not separator or not topic or not number.isascii() or not number.isdigit():
        raise UsageError(f"a replica is named TOPIC:PARTITION, such as orders:0, not {text!r}")
    return topic, int(number)


async def _move(bootstrap: str, broker: int, replicas: list[tuple[str, int]], to: str) -> list[LogDirMoveResult]:
    from strandline.client import Admin

    async with Admin(**reach(bootstrap), connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
        await _check_brokers(admin, [broker])
        return await admin.alter_replica_log_dirs(broker, dict.fromkeys(replicas, to), timeout_ms=MOVE_TIMEOUT_MS)


async def _check_brokers(admin: Admin, brokers: Sequence[int]) -> list[int]:
    """The brokers of the cluster. UsageError if one of these is not among them."""
    known = sorted(one.broker_id for one in (await admin.describe_cluster()).brokers)
    for broker_id in brokers:
        if broker_id not in known:
            raise UsageError(f"there is no broker {broker_id}; the cluster has {', '.join(map(str, known))}")
    return known


async def _ask(bootstrap: str, topics: list[str] | None, brokers: list[int] | None) -> Found:
    from strandline.client import Admin

    async with Admin(**reach(bootstrap), connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
        known = await _check_brokers(admin, brokers or ())
        if topics:
            await admin.describe_topics(topics)  # an unknown topic fails here; a broker would leave it out
        asked = sorted(set(brokers)) if brokers else known
        answers = await admin.describe_log_dirs(asked, topics or None, timeout_ms=TIMEOUT_MS)
    return {broker_id: answers.get(broker_id) for broker_id in asked}


def document(found: Found) -> dict[str, Any]:
    """The sizes as JSON has them. A broker that did not answer has `log_dirs` null."""
    return {
        "complete": all(dirs is not None for dirs in found.values()),
        "brokers": [
            {"broker": broker_id, "log_dirs": None if dirs is None else [_directory_json(one) for one in dirs]}
            for broker_id, dirs in found.items()
        ],
        "topics": [
            {"topic": topic, "replicas": replicas, "size_bytes": size, "largest_offset_lag": lag}
            for topic, replicas, size, lag in _topics(found)
        ],
    }


def _directory_json(one: LogDirDescription) -> dict[str, Any]:
    return {
        "path": one.path,
        "error": one.error.name if one.error else None,
        "is_cordoned": one.is_cordoned,
        "size_bytes": _bytes_of(one),
        "partitions": _replicas_json(one.replicas),
        "future_partitions": _replicas_json(one.future_replicas),
    }


def _replicas_json(replicas: Mapping[TopicPartition, ReplicaInfo]) -> list[dict[str, Any]]:
    return [
        {"topic": tp.topic, "partition": tp.partition, "size_bytes": info.size_bytes, "offset_lag": info.offset_lag}
        for tp, info in sorted(replicas.items())
    ]


def _bytes_of(one: LogDirDescription) -> int:
    """The bytes of the replicas in a directory, and of the copies that move there."""
    return sum(info.size_bytes for info in (*one.replicas.values(), *one.future_replicas.values()))


def _directories(found: Found) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for broker_id, dirs in found.items():
        if dirs is None:
            rows.append((broker_id, None, None, None, "no answer"))
        for one in dirs or ():
            if one.error:
                rows.append((broker_id, one.path, None, None, "offline"))
            else:
                rows.append((broker_id, one.path, len(one.replicas), _bytes_of(one), "cordoned" if one.is_cordoned else "ok"))
    return rows


def _topics(found: Found) -> list[tuple[str, int, int, int]]:
    """For each topic: name, number of replicas, bytes of all of them, largest lag."""
    totals: dict[str, tuple[int, int, int]] = {}
    for dirs in found.values():
        for one in dirs or ():
            for tp, info in one.replicas.items():
                count, size, lag = totals.get(tp.topic, (0, 0, 0))
                totals[tp.topic] = count + 1, size + info.size_bytes, max(lag, info.offset_lag)
    return [(topic, *totals[topic]) for topic in sorted(totals)]


def _replicas(found: Found) -> list[tuple[object, ...]]:
    return [
        (broker_id, tp.topic, tp.partition, info.size_bytes, info.offset_lag)
        for broker_id, dirs in found.items()
        for one in dirs or ()
        for tp, info in sorted(one.replicas.items())
    ]


def copies(found: Found) -> list[tuple[object, ...]]:
    """For each copy in progress: broker, replica, directory, bytes so far, and the records that it lacks."""
    return [
        (broker_id, f"{tp.topic}:{tp.partition}", one.path, show_bytes(info.size_bytes), info.offset_lag)
        for broker_id, dirs in found.items()
        for one in dirs or ()
        for tp, info in sorted(one.future_replicas.items())
    ]
