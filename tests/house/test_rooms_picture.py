"""The picture of the rooms in ARCHITECTURE.md is drawn from the source."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_picture_of_the_rooms_is_up_to_date() -> None:
    """A new room, a new folder in a room, or a new import between rooms changes the picture: run `python docs/rooms.py`."""
    done = subprocess.run([sys.executable, "docs/rooms.py", "--check"], cwd=ROOT, timeout=60, check=False)
    assert done.returncode == 0, "docs/rooms.svg is out of date: .venv/bin/python docs/rooms.py"
