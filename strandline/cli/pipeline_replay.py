"""`strandline pipeline replay`: writes records of a log or a lake to a topic again."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strandline.cli.common import DEFAULT_BOOTSTRAP, note
from strandline.cli.output import Form, Output
from strandline.cli.pipeline_common import (
    DEFAULT_MASTER,
    Master,
    Servers,
    client_options,
    moment_of,
    print_document_of,
    spark_for,
)
from strandline.protocol.errors import UsageError

if TYPE_CHECKING:
    from strandline.pipeline.jobs.replay import Replayed


def replay(
    topic: Annotated[str, typer.Option("--topic", metavar="NAME", help="The topic to read.")],
    to: Annotated[str, typer.Option("--to", metavar="NAME", help="The topic to write to. It must exist.")],
    checkpoint: Annotated[
        str,
        typer.Option("--checkpoint", metavar="DIR", help="Folder of the progress. A run with the same folder continues there."),
    ],
    lake: Annotated[str | None, typer.Option("--lake", metavar="DIR", help="Read from this lake instead of the log.")] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Start at the first record of this time or later: 2025-01-31T12:00 (UTC), or ms."),
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Stop before the first record of this time or later.")] = None,
    starting_offsets: Annotated[
        str | None, typer.Option(metavar="JSON", help='Instead of --since: {"orders": {"0": 1200, "1": -2}}; -2 is the earliest.')
    ] = None,
    ending_offsets: Annotated[str | None, typer.Option(metavar="JSON", help="Instead of --until; -1 is the latest.")] = None,
    partitions: Annotated[
        str,
        typer.Option(
            metavar="auto|same|key",
            help="Keep a record's partition, or choose it by its key. auto: same if the target has enough partitions.",
        ),
    ] = "auto",
    records_per_s: Annotated[
        float | None, typer.Option("--records-per-s", metavar="N", help="Records per second, at most, of the whole replay.")
    ] = None,
    bytes_per_s: Annotated[
        float | None,
        typer.Option("--bytes-per-s", metavar="N", help="Bytes of keys and values per second, at most, of the whole replay."),
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the replay and its producers. By default a new one.")
    ] = None,
    to_servers: Annotated[
        str | None,
        typer.Option("--to-bootstrap-servers", metavar="HOST:PORT,...", help="Brokers of the target, if it is another cluster."),
    ] = None,
    to_client_config: Annotated[
        str | None,
        typer.Option("--to-client-config", metavar="FILE", help="Kafka's client properties for the target."),
    ] = None,
    output: Output = Form.table,
    master: Master = DEFAULT_MASTER,
    bootstrap: Servers = DEFAULT_BOOTSTRAP,
) -> None:
    """Write records of a topic or a lake to another topic, in order, with keys, headers and timestamps. A replay that was stopped
    continues with its checkpoint, and each record is written once."""
    if partitions not in ("auto", "same", "key"):
        raise UsageError(f"--partitions must be auto, same or key, not {partitions!r}")
    arguments: dict[str, Any] = {
        "lake": lake,
        "to_servers": to_servers,
        "name": name,
        "place": partitions,
        "records_per_s": records_per_s,
        "bytes_per_s": bytes_per_s,
        "options": {**_source_options(since, until, starting_offsets, ending_offsets), **client_options(bootstrap)},
        "to_options": _target_options(bootstrap, to_servers, to_client_config),
        "progress": _progress(),
        "warn": note,
    }
    with spark_for("replay", master) as spark:
        from strandline.pipeline.jobs import replay as job

        done = job.replay(spark, bootstrap, topic, to, checkpoint, **arguments)
    if output.is_document:
        print_document_of(done, output)
    else:
        print(_sentence(done, to))


def _target_options(bootstrap: str, to_servers: str | None, to_client_config: str | None) -> dict[str, str]:
    """The options of the sink that say how to reach the target."""
    if to_client_config is not None:
        return {"clientConfig": os.path.abspath(to_client_config)}
    return client_options(bootstrap) if to_servers is None else {}


def _source_options(since: str | None, until: str | None, starting: str | None, ending: str | None) -> dict[str, str]:
    """The options of the source that limit which records are read."""
    options = {
        "startingTimestamp": _time_ms("--since", since),
        "endingTimestamp": _time_ms("--until", until),
        "startingOffsets": starting,
        "endingOffsets": ending,
    }
    return {option: value for option, value in options.items() if value is not None}


def _sentence(done: Replayed, to: str) -> str:
    found = f", {done.found:,} of them from an earlier run" if done.found else ""
    nothing = ": there was nothing left to write" if done.records == done.found else ""
    return f"{to} has the {done.records:,} records of replay {done.name}{found}{nothing}"


def _progress() -> Callable[[int, int], object]:
    """A function that prints a line to stderr: the seconds since now, and how many records are written."""
    began = time.monotonic()

    def show(rows: int, offsets: int) -> None:
        since_s = time.monotonic() - began
        print(f"{since_s:6.0f} s  {rows:,} of at most {offsets:,} records are written", file=sys.stderr, flush=True)

    return show


def _time_ms(option: str, text: str | None) -> str | None:
    """The time of an option as milliseconds since the epoch; text of digits alone is in milliseconds already. A time without a
    zone is in UTC, like the dates in a lake."""
    if text is None or re.fullmatch(r"\d+", text):
        return text
    return str(int(moment_of(option, text).timestamp() * 1000))
