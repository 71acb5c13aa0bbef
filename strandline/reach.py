"""How this process connects to its clusters: remembers the security settings by the address of the cluster.

A command has one option for the address and one for the client configuration. Many functions pass the address on, from the option
to the client, so the settings are remembered by the address and need not be passed:

    remember(bootstrap, security)            where the command line is read
    Admin(**reach(bootstrap), ...)           where a client is created

Without remembered settings, a cluster is reached in plaintext.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from strandline.protocol.security.client_security import ClientSecurity


class Reach(TypedDict):
    """The options of a client that say how to reach a cluster."""

    bootstrap_servers: str
    security: ClientSecurity | None


_security: dict[str, ClientSecurity] = {}
_files: dict[str, str] = {}


def remember(bootstrap: str, security: ClientSecurity, file: str | None = None) -> None:
    """From now on, clients of this process connect to the cluster with these settings. `file`: the client properties that have
    them."""
    _security[bootstrap] = security
    if file is not None:
        _files[bootstrap] = file


def forget(bootstrap: str) -> None:
    """Forget the settings of a cluster that has ended: another cluster may get its ports."""
    _security.pop(bootstrap, None)
    _files.pop(bootstrap, None)


def reach(bootstrap: str) -> Reach:
    """The options of a client for the cluster at this address."""
    return Reach(bootstrap_servers=bootstrap, security=_security.get(bootstrap))


def is_filtered(bootstrap: str) -> bool:
    """Whether the cluster at this address has security settings: then it shows the user only what they may describe."""
    from strandline.protocol.security.client_security import NO_SECURITY

    return security_of(bootstrap) != NO_SECURITY


def describable(what: str, bootstrap: str) -> str:
    """`what`, a sentence that the cluster has no topics, or no groups, ...; limited to what this user may describe, if the
    cluster shows only that."""
    return f"{what} that this user may describe" if is_filtered(bootstrap) else what


def client_config_of(bootstrap: str) -> str | None:
    """The path of the client properties for the cluster at this address; None if there are none."""
    return _files.get(bootstrap)


def security_of(bootstrap: str) -> ClientSecurity:
    """The security settings of connections to the brokers of the cluster at this address."""
    from strandline.protocol.security.client_security import NO_SECURITY

    return _security.get(bootstrap, NO_SECURITY)
