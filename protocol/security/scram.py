"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """What the server keeps of a password (RFC 5802, 3): nobody can log in with it, but guesses can be checked against it."""

    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int


LookUp = Callable[[str, str], ScramCredential | None]
"""(user, mechanism name) -> the user's credential."""
