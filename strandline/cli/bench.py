"""`strandline bench`: measures a cluster from the client's side."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from strandline.cli.common import DEFAULT_BOOTSTRAP, Bootstrap, new_app, run
from strandline.cli.compression import Codec, CodecOption, LevelOption, check_level
from strandline.cli.interrupts import AT_ONCE, PROCESSES_GRACE_S
from strandline.cli.output import Form, Output, Table, View, show

if TYPE_CHECKING:
    from strandline.bench.figures import Figures

app = new_app("Measure produce, consume, latency and fail-over.")


class Acks(StrEnum):
    all = "all"
    one = "1"
    none = "0"


class Mode(StrEnum):
    nowait = "nowait"
    wait = "await"


class Fault(StrEnum):
    kill_leader = "kill-leader"
    stop_leader = "stop-leader"
    kill_controller = "kill-controller"


Topic = Annotated[str, typer.Option(help="The topic; it is created with six partitions if it does not exist.")]
Records = Annotated[int, typer.Option(help="Number of records.", min=1)]
RecordSize = Annotated[int, typer.Option(metavar="BYTES", help="Size of each value.", min=1)]
AcksOption = Annotated[Acks, typer.Option(help="Replicas that acknowledge a record: all in-sync, the leader, or none.")]
BatchSize = Annotated[int, typer.Option(metavar="BYTES", help="Size of the largest batch.", min=1)]
Linger = Annotated[float, typer.Option("--linger-ms", metavar="MS", help="Time that a batch waits for more records.", min=0)]


@app.command()
def produce(
    topic: Topic = "bench",
    records: Records = 1_000_000,
    record_size: RecordSize = 100,
    acks: AcksOption = Acks.all,
    batch_size: BatchSize = 262_144,
    linger_ms: Linger = 5.0,
    mode: Annotated[Mode, typer.Option(help="Call send_nowait, or await send for each record.")] = Mode.nowait,
    compression: CodecOption = Codec.none,
    compression_level: LevelOption = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = Form.table,
) -> None:
    """Send records as fast as the client can. Values are random bytes; with a codec, they are lines of words."""
    check_level(compression, compression_level)
    from strandline.bench import loads

    load = loads.Load(
        bootstrap=bootstrap,
        topic=topic,
        records=records,
        record_size=record_size,
        acks=_acks(acks),
        batch_size=batch_size,
        linger_ms=linger_ms,
        compression_type=compression.value,
        compression_level=compression_level,
        mode=mode.value,
    )
    _print(run(loads.produce(load)), output)


@app.command()
def consume(
    topic: Topic = "bench",
    records: Records = 1_000_000,
    record_size: RecordSize = 100,
    acks: AcksOption = Acks.all,
    batch_size: BatchSize = 262_144,
    linger_ms: Linger = 5.0,
    compression: CodecOption = Codec.none,
    compression_level: LevelOption = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = Form.table,
) -> None:
    """Read a backlog from the beginning. If the topic has too few records, they are sent first."""
    check_level(compression, compression_level)
    from strandline.bench import loads

    load = loads.Load(
        bootstrap=bootstrap,
        topic=topic,
        records=records,
        record_size=record_size,
        acks=_acks(acks),
        batch_size=batch_size,
        linger_ms=linger_ms,
        compression_type=compression.value,
        compression_level=compression_level,
    )
    _print(run(loads.consume(load)), output)


@app.command()
def latency(
    topic: Topic = "bench",
    records: Records = 10_000,
    record_size: RecordSize = 100,
    acks: AcksOption = Acks.all,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = Form.table,
) -> None:
    """Send one record at a time, and wait for its acknowledgement."""
    from strandline.bench import loads

    load = loads.Load(bootstrap=bootstrap, topic=topic, records=records, record_size=record_size, acks=_acks(acks))
    _print(run(loads.latency(load)), output)


@app.command()
def failover(
    fault: Annotated[Fault, typer.Option(help="The fault to measure.")] = Fault.kill_leader,
    record_size: RecordSize = 100,
    output: Output = Form.table,
) -> None:
    """Start a new cluster, send one record per partition and millisecond, and kill or stop a node."""
    from strandline.bench.failover import failover as measure

    measured = run(measure(fault=fault.value, record_size=record_size), grace_s=PROCESSES_GRACE_S, on_interrupt=AT_ONCE)
    _print(measured, output)


def _acks(acks: Acks) -> Literal["all", 0, 1]:
    return "all" if acks is Acks.all else 1 if acks is Acks.one else 0


def _print(figures: Figures, output: Form) -> None:
    document = figures.to_json()
    rows = [(name, f"{value:,}") for name, value in document.items()]
    plain = Table(("figure", "value"), list(document.items()))
    show(View(document, [Table(("figure", "value"), rows)], plain=plain), output)
