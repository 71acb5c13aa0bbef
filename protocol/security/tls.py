"""TLS contexts of listeners and of clients, and plain words for what goes wrong in a handshake.

TLS 1.2 or newer, without compression and without renegotiation. `ServerTls.context` may be replaced while the listener serves:
each handshake uses the context of its moment, and open connections keep theirs. A context is built completely before it replaces
the old one, so files that do not fit together change nothing.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field

from strandline.protocol.errors import UsageError
from strandline.protocol.security.principal import ANONYMOUS, Principal

CLIENT_AUTH = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
"""Values of `ssl.client.auth`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTlsSettings:
    """The TLS settings of a listener."""

    certfile: str
    """The server's certificate and its chain (PEM)."""
    keyfile: str
    """The key of the certificate (PEM)."""
    key_password: str | None = field(default=None, repr=False)
    cafile: str | None = None
    """The authorities whose client certificates are accepted (PEM)."""
    client_auth: str = "none"
    """`ssl.client.auth`: none, requested or required."""
    principal_mapping_rules: str = "DEFAULT"
    """`ssl.principal.mapping.rules`."""


class ServerTls:
    """The TLS of a listener."""

    def __init__(self, settings: ServerTlsSettings) -> None:
        """UsageError if the files cannot be used."""
        self.settings = settings
        self.context = server_context(settings)
        """For the next handshake."""

    def reload(self) -> None:
        """Read the files again. UsageError if they cannot be used: the old certificate stays in use."""
        self.context = server_context(self.settings)

    def principal_of(self, certificate: bytes | None) -> Principal:
        """The principal of a client that presented `certificate` (DER); ANONYMOUS without one."""
        return ANONYMOUS


def server_context(settings: ServerTlsSettings) -> ssl.SSLContext:
    """The context of a listener. UsageError names the file that cannot be used."""
    raise UsageError("not implemented yet")
