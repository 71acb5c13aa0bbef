"""Lines for people on standard error, apart from the results; and the client's lines, which are not for them."""

from __future__ import annotations

import sys
from contextlib import suppress


def note(text: str) -> None:
    """Print a line. If it cannot be written, the command continues."""
    with suppress(OSError):
        sys.stderr.write(f"strandline: {text}\n")  # one write: a terminal's echo cannot come between
        sys.stderr.flush()


def quiet_client() -> None:
    """Discard the client's log lines: the command itself reports to the person."""
    import logging

    logging.getLogger("strandline").addHandler(logging.NullHandler())
