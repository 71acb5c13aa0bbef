"""The options of `strandline consume`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class Isolation(StrEnum):
    """Which records of transactions are printed."""

    read_uncommitted = "read_uncommitted"
    read_committed = "read_committed"


From = Annotated[
    str | None,
    typer.Option(
        "--from",
        "-o",
        metavar="WHERE",
        show_default=False,
        help="beginning, end, an offset, -N (N offsets before the end of each partition; -1 is the last one), "
        "@2026-01-01T12:00 (UTC), or @-5m (five minutes ago). Default: end; with --exit-at-end, beginning.",
    ),
]
Count = Annotated[
    int | None, typer.Option("-n", "-c", "--count", metavar="N", help="Stop after N records.", min=1, show_default=False)
]
ExitAtEnd = Annotated[
    bool, typer.Option("--exit-at-end", "-e", help="Stop at the end that the topic had when the command started.")
]
Partition = Annotated[int | None, typer.Option("--partition", "-p", metavar="N", help="Only this partition.", min=0)]
Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        "-f",
        metavar="FORMAT",
        show_default=False,
        help=r"%t topic, %p partition, %o offset, %e leader epoch, %T time in ms, %k key, %v value, %h headers, \n, \t; "
        r"or json. Default: %v\n",
    ),
]
Json = Annotated[
    bool,
    typer.Option("--json", "-J", help='One JSON object per record. Bytes that are not UTF-8 become {"base64": "..."}.'),
]
Group = Annotated[
    str | None,
    typer.Option(
        "--group",
        "-g",
        metavar="ID",
        show_default=False,
        help="Read as a member of this consumer group, from its committed offsets on, and commit what was printed.",
    ),
]
ClientRack = Annotated[
    str | None,
    typer.Option(
        "--client-rack",
        metavar="RACK",
        show_default=False,
        help="Read from replicas in this rack where there are any, instead of from leaders.",
    ),
]
IsolationLevel = Annotated[
    Isolation,
    typer.Option(
        "--isolation-level",
        metavar="LEVEL",
        help="read_uncommitted, or read_committed: no records of transactions that were aborted or are still open.",
    ),
]
