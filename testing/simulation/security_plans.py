"""The part of a seed's plan about security: which clients must log in again and when, and what is changed while they run."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

SECURITY_SHARE = 0.25
"""Share of runs with users, rights and quotas. (A run that begins at an older level of the metadata has none: that level knows no
rights.)"""
RIGHTS, PASSWORDS, QUOTAS, DENIALS = "rights", "passwords", "quotas", "denials"
CHANGES = (RIGHTS, PASSWORDS, QUOTAS, DENIALS)
"""The changes that the warden may make: withdraw rights and give them back, change passwords, set and remove quotas, add and
remove DENY rules."""


@dataclass(frozen=True, slots=True)
class SecurityPlan:
    max_reauth_ms: int
    """`connections.max.reauth.ms`; 0: never."""
    changes: tuple[str, ...]
    """The warden's changes, from `CHANGES`."""
    attacks: int
    """The most requests of the intruder."""

    def __str__(self) -> str:
        again = f"again every {self.max_reauth_ms} ms" if self.max_reauth_ms else "once"
        return f"logins {again}; changes: {' '.join(self.changes) or 'none'}; up to {self.attacks} attacks"


def draw_security(draw: Random) -> SecurityPlan | None:
    """The security of a run; None: it has none."""
    if draw.random() >= SECURITY_SHARE:
        return None
    return new_plan(draw)


def new_plan(draw: Random) -> SecurityPlan:
    changes = tuple(name for name in CHANGES if draw.random() < 0.5)
    return SecurityPlan(draw.choice((0, 500, 1500, 2500)), changes, draw.choice((0, 40, 80)))
