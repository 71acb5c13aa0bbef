"""Options of our client in a job: a dict that is shipped to the executors, and never printed with its secrets.

Spark pickles readers, writers and their options, so an executor gets the password that it needs. What is printed, in a log, an
error or a notebook, is the `repr`, which has no secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strandline.client.options import ClientOptions, table_of
from strandline.protocol.security.client_properties import NAMES, settings_of
from strandline.protocol.security.client_security import ClientSecurity

REDACTED = "*********(redacted)"
"""The text that Spark's own logs and errors show in place of a secret."""
_SECRET = frozenset(row.name for row in table_of(ClientOptions) if row.is_secret)


class ClientSettings(dict[str, Any]):
    """Options by name. Its text has no secrets."""

    def __repr__(self) -> str:
        shown = {name: REDACTED if name in _SECRET and value is not None else value for name, value in self.items()}
        return repr(shown)

    __str__ = __repr__

    def __reduce__(self) -> tuple[Any, ...]:
        return ClientSettings, (dict(self),)


def is_property(name: str) -> bool:
    """Whether this is the name of one of Kafka's security properties, without a prefix."""
    return name in NAMES


def settings_of_properties(properties: Mapping[str, str]) -> dict[str, Any]:
    """Kafka's security properties as options of our client. UsageError, without a secret, if one cannot be used."""
    return settings_of(properties)


def settings_of_file(path: str) -> dict[str, Any]:
    """The security settings in a file of Kafka's client properties as options of our client. UsageError names the file."""
    return differing(ClientSecurity.from_file(path))


def differing(security: ClientSecurity) -> dict[str, Any]:
    """The settings that are not the defaults, as options."""
    plain = ClientSecurity()
    names = [row.name for row in table_of(ClientOptions) if hasattr(plain, row.name)]
    return {name: getattr(security, name) for name in names if getattr(security, name) != getattr(plain, name)}
