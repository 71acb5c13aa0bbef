"""The arguments and results of the admin client's calls about quotas."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.protocol.errors import UsageError

DEFAULT = "<default>"
"""Stands for every user, client id or address that has no quota of its own, in place of a name."""


@dataclass(frozen=True, slots=True)
class QuotaEntity:
    """The clients for which a quota is set (Kafka's ClientQuotaEntity): a `user`, a `client_id`, both together, or an `ip`.

    `"<default>"` in place of a name stands for all that have no quota of their own. The first of these that has a value applies:
    user and client id, user and default id, user, default user and client id, default user and default id, default user, client
    id, default id."""

    user: str | None = None
    client_id: str | None = None
    ip: str | None = None

    def __post_init__(self) -> None:
        for name in ("user", "client_id", "ip"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, str) and value):
                raise UsageError(f"{name} of a quota is a non-empty str, or {DEFAULT!r} for the default, not {value!r}")

    def __str__(self) -> str:
        parts = (("user", self.user), ("client-id", self.client_id), ("ip", self.ip))
        return ", ".join(f"{kind} {name}" for kind, name in parts if name is not None)
