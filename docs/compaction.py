"""Draws the pictures of docs/compaction.md: a log before and after compaction, and the files of a segment that is replaced.

    python docs/compaction.py            writes docs/compaction.svg and docs/compaction-files.svg
    python docs/compaction.py --check    exits with 1 if a picture is out of date

Both pictures show what the log cleaner does: the script writes the records below into a log on a disk in memory, compacts it, and
draws the batches and the files that it finds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from html import escape
from pathlib import Path
from random import Random
from typing import NamedTuple

from strandline.protocol.records.batch import iter_headers
from strandline.protocol.records.builder import encode_batch
from strandline.protocol.records.reader import iter_records
from strandline.storage.cleaner.batch_cleaning import Rules
from strandline.storage.cleaner.cleaning import SegmentGroup, build_map, groups, plan
from strandline.storage.cleaner.offset_map import OffsetMap
from strandline.storage.log.log import Log
from strandline.storage.log.log_config import LogConfig
from strandline.storage.memory.memory_files import MemoryFiles

FOLDER = Path(__file__).resolve().parent
LOG_PICTURE, FILES_PICTURE = FOLDER / "compaction.svg", FOLDER / "compaction-files.svg"

DIRECTORY = "emails-0"
NOW_MS, HOUR_MS = 1_700_000_000_000, 3_600_000
RETENTION_MS = 24 * HOUR_MS
SEGMENT_RECORDS = 6
RECORDS: tuple[tuple[str, str | None], ...] = (
    ("ann", "ann@a"), ("bob", "bob@a"), ("ann", "ann@b"), ("dan", "dan@a"), ("bob", "bob@b"), ("cleo", "cleo@a"),
    ("cleo", None), ("ann", "ann@c"), ("bob", "bob@c"), ("ann", "ann@d"), ("bob", "bob@d"), ("ann", "ann@e"),
    ("ann", "ann@f"), ("eve", "eve@a"), ("bob", "bob@e"),
)  # fmt: skip
"""Key and value of each record; None is a tombstone. The segments have six records each, and the last one is active."""


class Drawn(NamedTuple):
    """A batch as the log has it."""

    first: int
    last: int
    key: str
    """Empty for a filler."""
    value: str | None


class State(NamedTuple):
    title: str
    batches: list[Drawn]
    segments: list[tuple[int, int]]
    """First offset, and the offset after the last one."""


# -- running the cleaner ----------------------------------------------------------------------------------------------


def filled_log() -> Log:
    """A log in memory with the records, one per batch, all of them committed."""
    batches = [
        encode_batch([(key.encode(), None if value is None else value.encode(), [], NOW_MS + number)])
        for number, (key, value) in enumerate(RECORDS)
    ]
    sizes = [len(batch) for batch in batches]
    full = min(sum(sizes[first : first + SEGMENT_RECORDS]) for first in (0, SEGMENT_RECORDS))
    limit = full + min(sizes) - 1  # almost room for a seventh record, so that two compacted segments fit into one
    log = Log.open(
        MemoryFiles(Random(0)), DIRECTORY, topic="emails", partition=0, topic_id=bytes(16),
        config=LogConfig(segment_bytes=limit), clean_shutdown=False, now_ms=NOW_MS,
    )  # fmt: skip
    for batch in batches:
        log.append_as_leader(bytearray(batch), 0, NOW_MS)
    log.update_high_watermark(log.log_end_offset)
    return log


def clean(log: Log, first_dirty: int, now_ms: int) -> list[list[str]]:
    """Compact the closed segments. Returns the directory's files after each of the steps that move a segment's file."""
    steps: list[list[str]] = []

    def note() -> None:
        if (names := files_of(log)) not in steps[-1:]:
            steps.append(names)

    note()
    planned = plan(log, first_dirty)
    offset_map = OffsetMap(1 << 12)
    list(build_map(log.files, planned, offset_map))
    for group in groups(planned, offset_map.latest_offset):
        list(group.rewrite(log.files, Rules(offset_map, now_ms, RETENTION_MS, planned.last_batches)))
        note()
        assert group.cleaned is not None, "every group of the example changes"
        for path in _watched(log, note, group, planned.truncations):
            log.files.remove(path)
        note()
    return steps


def _watched(log: Log, note: Callable[[], None], group: SegmentGroup, truncations: int) -> list[str]:
    """Replace the segments, and take a note after each file that is renamed."""
    rename = log.files.rename

    def renamed(source: str, target: str) -> None:
        rename(source, target)
        note()

    log.files.rename = renamed  # type: ignore[method-assign]
    try:
        assert group.cleaned is not None
        return log.replace_segments(group.old, group.cleaned, truncations)
    finally:
        log.files.rename = rename  # type: ignore[method-assign]


def files_of(log: Log) -> list[str]:
    """The names of the segments' files, without the indexes."""
    return sorted(name for name in log.files.list(log.dir) if ".log" in name)


def state(log: Log, title: str) -> State:
    batches: list[Drawn] = []
    offset = log.segments[0].base_offset
    while offset < log.log_end_offset:
        data = memoryview(b"".join(log.read(offset, 1 << 20, log.log_end_offset).buffers))
        for position, header in iter_headers(data):
            batch = bytes(data[position : position + header.size])
            record = next(iter(iter_records(batch)), None)
            key, value = ("", None) if record is None else (record.key or b"", record.value)
            text = key.decode() if isinstance(key, bytes) else key
            batches.append(Drawn(header.base_offset, header.last_offset, text, None if value is None else value.decode()))
            offset = header.next_offset
    starts = [segment.base_offset for segment in log.segments]
    return State(title, batches, list(zip(starts, [*starts[1:], log.log_end_offset], strict=True)))


def run() -> tuple[list[State], list[list[str]]]:
    """The log before, after the first and after a later cleaning; the files during the later one, which joins two segments."""
    log = filled_log()
    states = [state(log, "before")]
    clean(log, 0, NOW_MS)
    states.append(state(log, "after a round of the log cleaner"))
    steps = clean(log, log.segments[-1].base_offset, NOW_MS + RETENTION_MS + HOUR_MS)
    states.append(state(log, "after a later round, when delete.retention.ms has passed"))
    return states, steps


# -- drawing ----------------------------------------------------------------------------------------------------------

WIDTH, MARGIN = 960, 16
LINE, TEXT, FAINT, BACKGROUND = "#5b7c93", "#1d2d38", "#51616c", "#ffffff"
SEGMENT_FILL, ACTIVE_FILL, FILLER_FILL, OLD_FILL = "#eef4f8", "#fdf6e7", "#ffffff", "#e4e7ea"
KEYS = {"ann": "#bfe0c8", "bob": "#c5d8f2", "cleo": "#f2c9c4", "dan": "#ead6ef", "eve": "#f3e2b8"}
STEP = (WIDTH - 2 * MARGIN - 20) / len(RECORDS)
ROW, BOX = 122, 50


def left_of(offset: int) -> float:
    return MARGIN + 10 + offset * STEP


def text(x: float, y: float, words: str, size: float = 13, fill: str = TEXT, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" fill="{fill}" {more}>{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, fill: str, more: str = "") -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="5" fill="{fill}" {more}/>'


def state_svg(one: State, top: float, superseded: set[int]) -> Iterator[str]:
    yield text(MARGIN, top + 14, one.title, 15, more='font-weight="600"')
    for first, end in one.segments:
        is_active = (first, end) == one.segments[-1]
        x, width = left_of(first) - 4, (end - first) * STEP - 2
        yield box(x, top + 24, width, BOX + 32, ACTIVE_FILL if is_active else SEGMENT_FILL, f'stroke="{LINE}"')
        name = f"{'active' if is_active else 'closed'} segment {first}"
        yield text(x + 8, top + BOX + 50, name, 11.5, FAINT)
    for batch in one.batches:
        yield from batch_svg(batch, top + 30, batch.first in superseded)


def batch_svg(batch: Drawn, top: float, is_superseded: bool) -> Iterator[str]:
    x, width = left_of(batch.first), (batch.last - batch.first + 1) * STEP - 10
    middle = 'text-anchor="middle"'
    if not batch.key:
        yield box(x, top, width, BOX, FILLER_FILL, f'stroke="{LINE}" stroke-dasharray="4 3"')
        offsets = f"{batch.first}" if batch.first == batch.last else f"{batch.first} to {batch.last}"
        yield text(x + width / 2, top + 16, offsets, 11.5, FAINT, middle)
        yield text(x + width / 2, top + 35, "filler", 12, FAINT, middle)
        return
    fill = OLD_FILL if is_superseded else KEYS[batch.key]
    colour = FAINT if is_superseded else TEXT
    yield box(x, top, width, BOX, fill, f'stroke="{LINE}"')
    yield text(x + width / 2, top + 14, str(batch.first), 11.5, FAINT, middle)
    yield text(x + width / 2, top + 29, batch.key, 13, colour, f'{middle} font-weight="600"')
    words = "no value" if batch.value is None else batch.value
    yield text(x + width / 2, top + 43, words, 11, colour, middle)


def superseded_in(batches: list[Drawn], end: int) -> set[int]:
    """The offsets of records below `end` that a later record below `end` with the same key supersedes."""
    newest = {batch.key: batch.first for batch in batches if batch.first < end}
    return {batch.first for batch in batches if batch.first < newest.get(batch.key, -1)}


def log_picture(states: list[State]) -> str:
    height = MARGIN * 2 + len(states) * ROW
    lines = []
    for number, one in enumerate(states):
        closed_end = one.segments[-1][0]
        lines += state_svg(one, MARGIN + number * ROW, superseded_in(one.batches, closed_end) if number == 0 else set())
    return svg("A log before and after compaction: the newest record of each key stays at its offset", height, lines)


CAPTIONS = (
    "The closed segments 0 and 6 are one group: together they fit into segment.bytes. Segment 12 is active.",
    "The new segment is written beside them, with its indexes. A broker that starts now removes it.",
    "It is complete and fsynced. A broker that starts now finishes the replacement.",
    "The old segments are renamed, lowest offset first.",
    "",
    "The new segment has its name. Reads that began before still read the old files.",
    "file.delete.delay.ms later the old files are removed.",
)


def files_picture(steps: list[list[str]]) -> str:
    assert len(steps) == len(CAPTIONS), steps
    row, width = 68, (WIDTH - 2 * MARGIN) / 4
    lines = []
    for number, (names, caption) in enumerate(zip(steps, CAPTIONS, strict=True)):
        top = MARGIN + number * row - (20 if number > CAPTIONS.index("") else 0)
        lines.append(text(MARGIN, top + 14, caption, 13))
        y = top + (22 if caption else 2)
        for name in names:
            lines.append(file_svg(MARGIN + _column(name, names) * width, y, width - 10, name))
    return svg("The files of two segments while one takes their place", MARGIN * 2 + len(steps) * row - 28, lines)


def _column(name: str, names: list[str]) -> int:
    """The new segment stands in the first column, the old ones in the next two, the active one in the last."""
    base, _, suffix = name.partition(".")
    is_new = suffix in ("log.cleaned", "log.swap") or (suffix == "log" and f"{SEGMENT_RECORDS:020}.log" not in names)
    return 0 if is_new and not int(base) else 1 + int(base) // SEGMENT_RECORDS


def file_svg(x: float, y: float, width: float, name: str) -> str:
    suffix = name.partition(".")[2]
    fill = {"log": SEGMENT_FILL, "log.deleted": OLD_FILL}.get(suffix, KEYS["ann"])
    short = f"…{name[16:]}"
    return box(x, y, width, 32, fill, f'stroke="{LINE}"') + text(x + width / 2, y + 21, short, 13, TEXT, 'text-anchor="middle"')


def svg(title: str, height: float, lines: list[str]) -> str:
    font = 'font-family="system-ui, sans-serif"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" {font} role="img">'
    background = f'<rect width="{WIDTH}" height="{height:.0f}" fill="{BACKGROUND}"/>'
    return "\n".join([head, f"<title>{escape(title)}</title>", background, *lines, "</svg>"]) + "\n"


def pictures() -> dict[Path, str]:
    states, steps = run()
    return {LOG_PICTURE: log_picture(states), FILES_PICTURE: files_picture(steps)}


def main() -> int:
    drawn = pictures()
    if "--check" in sys.argv[1:]:
        return 0 if all(path.exists() and path.read_text() == content for path, content in drawn.items()) else 1
    for path, content in drawn.items():
        path.write_text(content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
