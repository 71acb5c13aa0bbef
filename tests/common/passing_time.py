"""Time that passes at once: a test of a time limit then depends on the order of events, and not on how busy the machine is."""

from __future__ import annotations

import asyncio

import pytest


def let_pass(monkeypatch: pytest.MonkeyPatch, passed_ms: float) -> None:
    """Advance the clock of the running asyncio loop; the timers that are due run next. (uvloop's clock cannot be.)"""
    loop = asyncio.get_running_loop()
    clock = loop.time
    monkeypatch.setattr(loop, "time", lambda: clock() + passed_ms / 1000)
