"""Log lines: their format, and that a line that cannot be written is dropped without any other effect."""

from __future__ import annotations

import errno
import json
import os
import pty
import subprocess
import sys

import pytest
from cli_world import ENVIRONMENT

from strandline.logs import Lines

CODE = """
import os
from strandline import logs
logs.configure(node="broker-1", environment=os.environ)
logs.structlog.get_logger().info("node.started", port=9092)
"""


def line_on_a_pipe(**environment: str) -> str:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, env=ENVIRONMENT | environment, check=True)
    return done.stderr


def line_on_a_terminal(**environment: str) -> str:
    """Return the line as it looks on a terminal, with colours."""
    ours, theirs = pty.openpty()
    try:
        subprocess.run([sys.executable, "-c", CODE], stderr=theirs, env=ENVIRONMENT | environment, check=True)
        return os.read(ours, 10_000).decode()
    finally:
        os.close(ours)
        os.close(theirs)


@pytest.mark.parametrize("environment", [{}, {"STRANDLINE_LOG_FORMAT": "auto"}, {"STRANDLINE_LOG_FORMAT": "json"}], ids=str)
def test_a_program_reads_json(environment: dict[str, str]) -> None:
    line = json.loads(line_on_a_pipe(**environment))
    assert (line["event"], line["node"], line["port"], line["level"]) == ("node.started", "broker-1", 9092, "info")


def test_a_person_reads_coloured_lines() -> None:
    line = line_on_a_terminal(TERM="xterm")
    assert "\x1b[" in line
    assert "node.started" in line


def test_no_color_disables_colours() -> None:
    assert "\x1b[" not in line_on_a_terminal(TERM="xterm", NO_COLOR="1")


def test_the_format_can_be_chosen() -> None:
    """`docker run -t` may need JSON, and `| less` text; only terminals get colours."""
    assert json.loads(line_on_a_terminal(STRANDLINE_LOG_FORMAT="json"))["event"] == "node.started"
    line = line_on_a_pipe(STRANDLINE_LOG_FORMAT="console")
    assert "node.started" in line
    assert "{" not in line
    assert "\x1b[" not in line


def test_lines_below_the_level_are_not_written() -> None:
    assert line_on_a_pipe(STRANDLINE_LOG_LEVEL="warning") == ""


def test_a_line_to_a_closed_pipe_is_dropped() -> None:
    read, write = os.pipe()
    try:
        Lines(write).write("heard\n")
        assert os.read(read, 100) == b"heard\n"
    finally:
        os.close(read)
    Lines(write).write("unheard\n")
    os.close(write)
    Lines(write).write("the descriptor is closed\n")


def test_a_full_disk_does_not_stop_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    assert Lines().write("x\n") == 2


def test_invalid_text_is_written() -> None:
    """A client id may be anything, lone surrogates included."""
    read, write = os.pipe()
    Lines(write).write("client \udcff\n")
    os.close(write)
    with os.fdopen(read, "rb") as lines:
        assert lines.read() == b"client \\udcff\n"
