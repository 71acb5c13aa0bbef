"""The number of random examples with which a property is checked. Each build draws other examples: with fewer of them, a fault is
found some builds later."""

from __future__ import annotations

import os

IS_THOROUGH = os.environ.get("ALL_EXAMPLES") == "1"
"""`make test-all` sets it."""


def examples(count: int) -> int:
    """Return `count` in a thorough build, and a quarter of it in all others."""
    return count if IS_THOROUGH else count // 4
