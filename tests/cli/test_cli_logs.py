"""Lines of the log that cannot be written are lost, and nothing else is."""

from __future__ import annotations

import errno
import os

import pytest

from strandline.logs import Lines


def test_a_line_whose_reader_went_away_is_dropped() -> None:
    read, write = os.pipe()
    try:
        Lines(write).write("heard\n")
        assert os.read(read, 100) == b"heard\n"
    finally:
        os.close(read)
    Lines(write).write("unheard\n")
    os.close(write)
    Lines(write).write("the descriptor is closed\n")


def test_a_full_disk_does_not_stop_who_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    assert Lines().write("x\n") == 2


def test_what_is_no_text_is_written_all_the_same() -> None:
    """A client id may be anything, lone surrogates included."""
    read, write = os.pipe()
    Lines(write).write("client \udcff\n")
    os.close(write)
    with os.fdopen(read, "rb") as lines:
        assert lines.read() == b"client \\udcff\n"
