"""The files of `strandline group seek --export` and `--from-file`: those of kafka-consumer-groups.sh.

    orders,0,1042                topic, partition, offset: the next record that the group reads
    billing,orders,0,1042        the same in a file for several groups, which begins with the group

A file has no header line. Empty lines are ignored.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from io import StringIO
from pathlib import Path

from strandline.protocol.errors import UsageError

Place = tuple[str, int]
"""A topic and the number of a partition."""


def csv_text(offsets: Mapping[Place, int]) -> str:
    """The lines of a file for one group, without a line break at the end."""
    text = StringIO()
    csv.writer(text, lineterminator="\n").writerows((topic, number, offset) for (topic, number), offset in offsets.items())
    return text.getvalue().removesuffix("\n")


def read_csv(path: Path, group: str) -> dict[Place, int]:
    """The offsets for this group in a file. UsageError if the file cannot be read, has none for the group, or a line is wrong."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as e:
        why = e.strerror if isinstance(e, OSError) else "it is no text in UTF-8"
        raise UsageError(f"cannot read {path}: {why}") from None
    found = parse_csv(text.splitlines(), group, str(path))
    if not found:
        raise UsageError(f"{path} has no offset for {group}")
    return found


def parse_csv(lines: Iterable[str], group: str, name: str) -> dict[Place, int]:
    """The offsets for this group. `name`: the file, in a UsageError about a line that is not topic,partition,offset, or that
    names a partition a second time."""
    found: dict[Place, int] = {}
    for number, line in enumerate(lines, 1):
        fields = [field.strip() for field in next(csv.reader([line]), [])]
        if not any(fields):
            continue
        if len(fields) not in (3, 4) or not fields[-3] or not all(field.isdecimal() for field in fields[-2:]):
            raise UsageError(f"{name}, line {number}: a line is topic,partition,offset, such as orders,0,1042; not {line!r}")
        if len(fields) == 4 and fields[0] != group:
            continue
        place = fields[-3], int(fields[-2])
        if place in found:
            raise UsageError(f"{name}, line {number}: {place[0]}-{place[1]} has an offset in an earlier line")
        found[place] = int(fields[-1])
    return found
