"""Draws docs/rooms.svg: the rooms of the package, what is inside each, and which room imports which.

    python docs/rooms.py            writes the picture
    python docs/rooms.py --check    exits with 1 if the picture is out of date

Rooms and imports are read from the source (`ast`, imports for type checkers included), so the picture cannot disagree with it.
Only the positions of the rooms are written here. An arrow from A to C is left out if arrows lead from A to B and from B to C.
A new room and a new folder in a room change the picture; a new file does not.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "rooms.svg"

COLUMNS = 12
ROWS: tuple[dict[str, tuple[int, int]], ...] = (
    {"strandline/cli": (0, 12)},
    {"pipeline": (0, 5), "strandline/chaos": (5, 12)},
    {"strandline/bench": (5, 12)},
    {"testing": (0, 12)},
    {"strandline": (3, 12)},
    {"strandline/observe": (3, 12)},
    {"client": (0, 3), "broker": (3, 8), "controller": (8, 12)},
    {"storage": (3, 12)},
    {"protocol": (0, 12)},
)
"""The rooms per row, each with its first column and the column after its last. A room imports from rows below it or from its own
row. Columns stay free where an arrow passes a row."""
COMMANDS = {"bench", "control", "demo"}
"""Modules of `strandline` that are drawn with `strandline/bench`: they import what that imports."""
CAPTIONS = {
    "strandline/cli": "the command line",
    "pipeline": "topics in Spark",
    "strandline/chaos": "faults on purpose",
    "strandline/bench": "demo, bench, nodes by name",
    "strandline": "one node as a process, a local cluster of them",
    "testing": "clusters with faults in tests; the simulator",
    "strandline/observe": "health and metrics",
    "client": "producer, consumer, admin",
    "broker": "partitions and replication",
    "controller": "the metadata quorum",
    "storage": "logs on disk",
    "protocol": "messages, records, connections",
}

WIDTH, GAP, MARGIN = 960, 30, 16
HEAD_HEIGHT, LINE_HEIGHT = 63, 25
"""Of a room: its name and caption; a line of its folders."""
ROOM_FILL, FOLDER_FILL, LINE, TEXT, FAINT = "#eef4f8", "#ffffff", "#5b7c93", "#1d2d38", "#51616c"


# -- reading the source -----------------------------------------------------------------------------------------------


def room_of(module: str) -> str | None:
    """The room of `strandline.broker.fetch.fetch_session`: "broker"; None for a module that is not ours."""
    top, _, rest = module.partition(".")
    name = rest.split(".")[0]
    if top != "strandline" or not name or name[0].isupper() or name.startswith("_"):
        return None  # The public names stand in `strandline/__init__.py`: no arrow tells that.
    rooms = {room for row in ROWS for room in row}
    if name in COMMANDS:
        return "strandline/bench"
    return next((room for room in (name, f"strandline/{name}") if room in rooms), "strandline")


def sources(room: str) -> Iterator[Path]:
    """The modules of a room, its folders included."""
    files = list((ROOT / room).glob("*.py") if room == "strandline" else (ROOT / room).rglob("*.py"))
    if room == "strandline/bench":
        files += [ROOT / "strandline" / f"{name}.py" for name in COMMANDS - {"bench"}]
    moved = COMMANDS | {"__init__"} if room == "strandline" else set()
    yield from sorted(file for file in files if file.stem not in moved)


def imported(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name


def imports() -> dict[str, set[str]]:
    """Room -> the rooms that it imports from."""
    found: dict[str, set[str]] = {}
    for room in (room for row in ROWS for room in row):
        names = {room_of(name) for file in sources(room) for name in imported(file)}
        found[room] = {name for name in names if name is not None} - {room}
    return found


def drawn(edges: dict[str, set[str]]) -> list[tuple[str, str]]:
    """The edges that no longer way says: the transitive reduction of a graph without circles."""

    def reached(room: str) -> set[str]:
        return edges[room].union(*(reached(next_room) for next_room in edges[room]))

    return [
        (room, other)
        for room in edges
        for other in sorted(edges[room])
        if not any(other in reached(between) for between in edges[room] - {other})
    ]


def folders(room: str) -> list[str]:
    """The folders directly in a room that hold modules."""
    if room == "strandline":
        return []  # Its folders are rooms.
    inside = (path for path in sorted((ROOT / room).iterdir()) if (path / "__init__.py").exists())
    return [path.name for path in inside if not path.name.startswith("pyspark_")]


# -- drawing ----------------------------------------------------------------------------------------------------------


class Box(NamedTuple):
    left: float
    top: float
    width: float
    height: float


def boxes() -> dict[str, Box]:
    """The rooms of a row are as high as the one with most folders needs."""
    step = (WIDTH - 2 * MARGIN + GAP) / COLUMNS
    placed: dict[str, Box] = {}
    top = float(MARGIN)
    for row in ROWS:
        widths = {room: (last - first) * step - GAP for room, (first, last) in row.items()}
        height = HEAD_HEIGHT + LINE_HEIGHT * max(1, *(len(lines_of_folders(room, width)) for room, width in widths.items()))
        placed |= {room: Box(MARGIN + first * step, top, widths[room], height) for room, (first, _) in row.items()}
        top += height + GAP
    return placed


def width_of(folder: str) -> float:
    return 6.4 * len(folder) + 11


def lines_of_folders(room: str, width: float) -> list[list[str]]:
    """The folders of a room, in lines that fit into its width."""
    lines: list[list[str]] = []
    left = 0.0
    for name in folders(room):
        if not lines or left + width_of(name) > width - 28:
            lines.append([])
            left = 0.0
        lines[-1].append(name)
        left += width_of(name) + 5
    return lines


def room_svg(room: str, box: Box) -> Iterator[str]:
    left, top = box.left + 14, box.top
    corner = f'x="{box.left:.0f}" y="{top:.0f}" width="{box.width:.0f}" height="{box.height:.0f}" rx="8"'
    yield f'<rect {corner} fill="{ROOM_FILL}" stroke="{LINE}"/>'
    yield f'<text x="{left:.0f}" y="{top + 26:.0f}" font-weight="600" fill="{TEXT}">{escape(room)}/</text>'
    yield f'<text x="{left:.0f}" y="{top + 45:.0f}" font-size="13" fill="{FAINT}">{escape(CAPTIONS[room])}</text>'
    for number, names in enumerate(lines_of_folders(room, box.width)):
        yield from folders_svg(names, left, top + 57 + number * LINE_HEIGHT)


def folders_svg(names: list[str], x: float, y: float) -> Iterator[str]:
    for name in names:
        wide = width_of(name)
        corner = f'x="{x:.1f}" y="{y:.0f}" width="{wide:.1f}" height="20" rx="4"'
        yield f'<rect {corner} fill="{FOLDER_FILL}" stroke="{LINE}" stroke-opacity="0.5"/>'
        middle = f'x="{x + wide / 2:.1f}" y="{y + 14:.0f}" text-anchor="middle"'
        yield f'<text {middle} font-size="11.5" fill="{TEXT}">{escape(name)}</text>'
        x += wide + 5


def arrow_svg(start: Box, end: Box, share: float) -> str:
    if start.top == end.top:  # Side by side.
        y = start.top + start.height / 2
        from_x, to_x = (start.left + start.width, end.left) if start.left < end.left else (start.left, end.left + end.width)
        return f'<path d="M {from_x:.0f} {y:.0f} L {to_x:.0f} {y:.0f}" class="imports"/>'
    low, high = max(start.left, end.left), min(start.left + start.width, end.left + end.width)
    x = low + (high - low) * share
    return f'<path d="M {x:.0f} {start.top + start.height:.0f} L {x:.0f} {end.top:.0f}" class="imports"/>'


def picture() -> str:
    placed = boxes()
    height = max(int(box.top + box.height) for box in placed.values()) + MARGIN
    edges = drawn(imports())
    arrows = []
    for number, (room, other) in enumerate(edges):
        beside = [edge for edge in edges if edge[1] == other]
        arrows.append(arrow_svg(placed[room], placed[other], (beside.index(edges[number]) + 1) / (len(beside) + 1)))
    font = 'font-family="system-ui, sans-serif" font-size="16"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" {font} role="img">',
        "<title>The rooms of Strandline: an arrow leads from a room to one that it imports</title>",
        '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M 0 0 L 10 5 L 0 10 z" fill="{LINE}"/></marker></defs>',
        f"<style>.imports {{ fill: none; stroke: {LINE}; stroke-width: 1.5; marker-end: url(#head) }}</style>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        *arrows,
        *(line for room, box in placed.items() for line in room_svg(room, box)),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    if "--check" in sys.argv[1:]:
        return 0 if PICTURE.exists() and PICTURE.read_text() == picture() else 1
    PICTURE.write_text(picture())
    return 0


if __name__ == "__main__":
    sys.exit(main())
