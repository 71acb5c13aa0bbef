"""`strandline pipeline replay`: records of a log or a lake into a topic once more."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from strandline.cli.common import DEFAULT_BOOTSTRAP, Json, note, print_json
from strandline.cli.pipeline_common import DEFAULT_MASTER, Master, Servers, spark_for
from strandline.protocol.errors import UsageError


def replay(
    topic: Annotated[str, typer.Option("--topic", metavar="NAME", help="The topic to read.")],
    to: Annotated[str, typer.Option("--to", metavar="NAME", help="The topic to write to. It must exist.")],
    checkpoint: Annotated[
        str,
        typer.Option("--checkpoint", metavar="DIR", help="Folder of the progress: with the same one a run continues."),
    ],
    lake: Annotated[str | None, typer.Option("--lake", metavar="DIR", help="Read from this lake instead of the log.")] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Start at the first record from this time on: 2025-01-31T12:00 (UTC), or ms."),
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Stop before the first record from this time on.")] = None,
    starting_offsets: Annotated[
        str | None, typer.Option(metavar="JSON", help='Instead of --since: {"orders": {"0": 1200, "1": -2}}; -2 is the earliest.')
    ] = None,
    ending_offsets: Annotated[str | None, typer.Option(metavar="JSON", help="Instead of --until; -1 is the latest.")] = None,
    partitions: Annotated[
        str,
        typer.Option(
            metavar="auto|same|key",
            help="Write a record to the partition it had, or to that of its key. auto: same if the target has enough.",
        ),
    ] = "auto",
    records_per_s: Annotated[
        float | None, typer.Option("--records-per-s", metavar="N", help="Limit for the whole replay.")
    ] = None,
    bytes_per_s: Annotated[
        float | None, typer.Option("--bytes-per-s", metavar="N", help="Limit for keys and values of the whole replay.")
    ] = None,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Name of its producers. By default a new one.")] = None,
    to_servers: Annotated[
        str | None,
        typer.Option("--to-bootstrap-servers", metavar="HOST:PORT,...", help="Brokers of the target, if it is another cluster."),
    ] = None,
    json: Json = False,
    master: Master = DEFAULT_MASTER,
    bootstrap: Servers = DEFAULT_BOOTSTRAP,
) -> None:
    """Write records of a topic or a lake into another topic, in order, with keys, headers and timestamps. Each record is
    written once, however often the replay is stopped and started with its checkpoint."""
    if partitions not in ("auto", "same", "key"):
        raise UsageError(f"--partitions must be auto, same or key, not {partitions!r}")
    options = {
        "startingTimestamp": _time_ms("--since", since),
        "endingTimestamp": _time_ms("--until", until),
        "startingOffsets": starting_offsets,
        "endingOffsets": ending_offsets,
    }
    arguments: dict[str, Any] = {
        "lake": lake,
        "to_servers": to_servers,
        "name": name,
        "place": partitions,
        "records_per_s": records_per_s,
        "bytes_per_s": bytes_per_s,
        "options": {option: value for option, value in options.items() if value is not None},
        "tell": _teller(),
        "warn": note,
    }
    with spark_for("replay", master) as spark:
        from strandline.pipeline.jobs import replay as job

        done = job.replay(spark, bootstrap, topic, to, checkpoint, **arguments)
    if json:
        print_json({field: getattr(done, field) for field in done.__dataclass_fields__})
        return
    new, there = done.records - done.found, f", {done.found:,} of them by a former run" if done.found else ""
    print(f"{to} has the {done.records:,} records of replay {done.name}{there}" + (": nothing was left to do" if not new else ""))


def _teller() -> Callable[[int, int], object]:
    """How far it is: on stderr, a line every few seconds."""
    began = time.monotonic()

    def tell(rows: int, offsets: int) -> None:
        since_s = time.monotonic() - began
        print(f"{since_s:6.0f} s  {rows:,} records of at most {offsets:,} are written", file=sys.stderr, flush=True)

    return tell


def _time_ms(option: str, text: str | None) -> str | None:
    """Milliseconds since 1970. A time without a zone is UTC, as dates in a lake are."""
    if text is None or re.fullmatch(r"\d+", text):
        return text
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{option} takes a time such as 2025-01-31T12:00 (UTC), or milliseconds; not {text!r}") from None
    return str(int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000))
