"""Guards that no instrument notices, and why: told twice, out of reach, or a blind spot."""

from __future__ import annotations

WHY: dict[str, str] = {}
