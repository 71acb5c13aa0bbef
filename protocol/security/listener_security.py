"""How a listener authenticates its peers: the security protocol, TLS, the SASL mechanisms, and the limits until then."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from strandline.protocol.errors import UsageError
from strandline.protocol.security.mechanisms import PLAIN, MakeServerExchange
from strandline.protocol.security.tls import ServerTls

PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL = "PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"
SECURITY_PROTOCOLS = (PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSecurity:
    """The security of one listener. A server without it is a PLAINTEXT listener."""

    security_protocol: str
    """SSL, SASL_PLAINTEXT or SASL_SSL (or PLAINTEXT, which is the same as no ListenerSecurity)."""
    tls: ServerTls | None = field(default=None, repr=False)
    """For SSL and SASL_SSL."""
    mechanisms: Mapping[str, MakeServerExchange] = field(default_factory=dict, repr=False)
    """For SASL_PLAINTEXT and SASL_SSL, by name: `scram_server(...)`, `plain_server(...)`, `oauthbearer_server(...)`."""
    max_reauth_ms: int = 0
    """`connections.max.reauth.ms`: the client must authenticate again within this time (KIP-368). 0: never."""
    receive_bytes_max: int = 512 * 1024
    """`sasl.server.max.receive.size`: the largest frame before authentication."""
    authentication_ms_max: int = 10_000
    """How long, in ms, the TLS handshake may take, and then the SASL exchange."""
    failed_delay_ms: int = 100
    """`connection.failed.authentication.delay.ms`: delays the response to a failed authentication, and the close."""
    unauthenticated_max: int = 1000
    """The largest number of connections in an unfinished handshake or authentication. One address may have half of them."""

    def __post_init__(self) -> None:
        if self.security_protocol not in SECURITY_PROTOCOLS:
            known = ", ".join(SECURITY_PROTOCOLS)
            raise UsageError(f"unknown security protocol {self.security_protocol!r}: the protocols are {known}")
        if self.has_tls and self.tls is None:
            raise UsageError(f"a listener with {self.security_protocol} needs a certificate and a key")
        if self.has_sasl and not self.mechanisms:
            raise UsageError(f"a listener with {self.security_protocol} needs at least one SASL mechanism")

    @property
    def has_tls(self) -> bool:
        return self.security_protocol in (SSL, SASL_SSL)

    @property
    def has_sasl(self) -> bool:
        return self.security_protocol in (SASL_PLAINTEXT, SASL_SSL)


def refuse_plain_without_tls(security_protocol: str, mechanisms: list[str], listener: str, host: str) -> None:
    """Raise UsageError if the listener would let passwords travel in plain text: SASL/PLAIN without TLS, except on loopback."""
    if security_protocol == SASL_PLAINTEXT and PLAIN in mechanisms and not is_loopback(host):
        raise UsageError(
            f"listener {listener} on {host} offers SASL/PLAIN without TLS, so passwords would cross the network in plain text; "
            f"use SASL_SSL, or a SCRAM mechanism"
        )


def is_loopback(host: str) -> bool:
    """Return True if only processes of this machine reach the host."""
    return host in ("localhost", "::1") or host.startswith("127.")
