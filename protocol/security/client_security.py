"""How a client authenticates a server, and itself to it: the settings, by aiokafka's names."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

TokenProvider = Callable[[], Awaitable[str]]
"""Returns a token (a JWT) for SASL/OAUTHBEARER. It is called for each authentication."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSecurity:
    """The security settings of outgoing connections: those of a client, and those of a node to other nodes."""

    security_protocol: str = "PLAINTEXT"
    """PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."""
    ssl_context: ssl.SSLContext | None = field(default=None, repr=False)
    """Replaces all other `ssl_` settings but `ssl_check_hostname`."""
    ssl_cafile: str | None = None
    """The certificates of the authorities that the client trusts (PEM); None: those of the system."""
    ssl_certfile: str | None = None
    """The client's own certificate and its chain (PEM), for servers that ask for one."""
    ssl_keyfile: str | None = None
    ssl_password: str | None = field(default=None, repr=False)
    """Decrypts the key file."""
    ssl_check_hostname: bool = True
    """Whether the server's certificate must name the host that the client connects to."""
    sasl_mechanism: str = "SCRAM-SHA-512"
    """SCRAM-SHA-256, SCRAM-SHA-512, PLAIN or OAUTHBEARER."""
    sasl_plain_username: str | None = None
    """The user name, for PLAIN and SCRAM."""
    sasl_plain_password: str | None = field(default=None, repr=False)
    sasl_oauth_token_provider: TokenProvider | None = field(default=None, repr=False)


NO_SECURITY = ClientSecurity()
"""Plaintext connections, without authentication."""
