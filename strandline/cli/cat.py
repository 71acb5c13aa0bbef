"""`strandline cat`: records as JSON lines, out of a topic and into it.

It is `consume --json` and `produce --json` under one name, and chooses the direction as kcat does: lines that are piped into it
are sent, and otherwise records are printed. -C and -P say which, where standard input is a pipe that nothing writes to."""

from __future__ import annotations

import os
import stat
import sys
from typing import Annotated

import typer

from strandline.cli import consume as reading
from strandline.cli import produce as writing
from strandline.cli.common import DEFAULT_BOOTSTRAP, Bootstrap, Topic, TopicOption, new_app, note, topic_of
from strandline.cli.compression import Codec, CodecOption
from strandline.protocol.errors import UsageError

app = new_app()

EXAMPLES = """\b
Examples:
  strandline cat orders -e                        all present records
  strandline cat orders -o -10                    the last 10 and new ones
  strandline cat orders -e | jq .value            one field of each
  echo '{"key": "a", "value": "tea"}' | strandline cat orders
  strandline cat orders -e -C | strandline cat copy --ignore-partition
"""


@app.command(epilog=EXAMPLES)
def cat(
    topic: Topic = None,
    topic_option: TopicOption = None,
    consume: Annotated[bool, typer.Option("--consume", "-C", help="Print records, although lines are piped in.")] = False,
    produce: Annotated[bool, typer.Option("--produce", "-P", help="Send lines, also those typed at a terminal.")] = False,
    from_: Annotated[
        str | None,
        typer.Option(
            "--from", "-o", metavar="WHERE", show_default="beginning", help="Where to begin, as for `consume`: -10, @-5m, end."
        ),
    ] = None,
    count: Annotated[
        int | None, typer.Option("-n", "-c", "--count", metavar="N", help="Stop after N records.", min=1, show_default=False)
    ] = None,
    exit_at_end: Annotated[
        bool, typer.Option("--exit-at-end", "-e", help="Stop at the end that the topic had when the command started.")
    ] = False,
    partition: Annotated[int | None, typer.Option("--partition", "-p", metavar="N", help="Only this partition.", min=0)] = None,
    ignore_partition: Annotated[
        bool, typer.Option("--ignore-partition", help="The key of a line chooses its partition, not the line.")
    ] = False,
    compression: CodecOption = Codec.none,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Print the records of a topic as JSON lines, or send JSON lines that are piped in. Reading begins with the first record and
    continues until Ctrl-C, unless -e is given. `cat` can send what it prints."""
    name = topic_of("cat", topic, topic_option)
    if _is_producing(consume, produce):
        if from_ is not None or count is not None or exit_at_end:
            raise UsageError("--from, --count and --exit-at-end are about reading; -C reads although lines are piped in")
        if not produce:
            note(f"sending the lines of standard input to {name} (-C prints its records instead)")
        writing.produce(
            name, partition=partition, json=True, ignore_partition=ignore_partition, compression=compression, bootstrap=bootstrap
        )
        return
    if ignore_partition or compression is not Codec.none:
        raise UsageError("--ignore-partition and --compression are about sending: pipe lines in, or give -P")
    reading.consume(
        name,
        from_=from_ or "beginning",
        count=count,
        exit_at_end=exit_at_end,
        partition=partition,
        json=True,
        bootstrap=bootstrap,
    )


def _is_producing(consume: bool, produce: bool) -> bool:
    """The direction that was chosen, or else that of standard input: a pipe or a file has lines, a terminal and /dev/null have
    none."""
    if consume and produce:
        raise UsageError("--consume and --produce exclude each other")
    if consume or produce:
        return produce
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)
