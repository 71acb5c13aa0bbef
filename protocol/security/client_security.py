"""The settings by which a client authenticates a server, and itself to the server, with aiokafka's names.

A program writes `ClientSecurity(security_protocol="SASL_SSL", ...)`, or reads Kafka's client properties with
`ClientSecurity.from_file("client.properties")`, so that one file serves Kafka's tools and this package
(`client_properties.py`). Secrets are in no repr, and in no error. Files are opened only when a connection needs them.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from strandline.protocol.doors import SECURE_RANDOM
from strandline.protocol.errors import UsageError
from strandline.protocol.security.client_properties import read_file, settings_of, settings_of_file
from strandline.protocol.security.mechanisms import MECHANISMS, OAUTHBEARER, RandomBytes

TokenProvider = Callable[[], Awaitable[str]]
"""Returns a token (a JWT) for SASL/OAUTHBEARER. It is called for each authentication, perhaps on another event loop than the
client's own: heartbeats have a thread."""

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_OF_TLS = ("ssl_context", "ssl_cafile", "ssl_certfile", "ssl_keyfile", "ssl_password")
_OF_SASL = ("sasl_plain_username", "sasl_plain_password", "sasl_oauth_token_provider")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSecurity:
    """The security settings of outgoing connections: those of a client, and those of a node to other nodes. Raises UsageError if
    they contradict each other."""

    security_protocol: str = "PLAINTEXT"
    """PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."""
    ssl_context: ssl.SSLContext | None = field(default=None, repr=False)
    """Replaces all other `ssl_` settings."""
    ssl_cafile: str | None = None
    """The certificates of the authorities that the client trusts (PEM); None: those of the system."""
    ssl_certfile: str | None = None
    """The client's own certificate and its chain (PEM), for servers that ask for one."""
    ssl_keyfile: str | None = None
    """The key of the certificate (PEM); None: it is in the certificate's file."""
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
    random_bytes: RandomBytes = field(default=SECURE_RANDOM, repr=False)
    """The source of nonces."""

    def __post_init__(self) -> None:
        check(self)

    @property
    def has_tls(self) -> bool:
        return self.security_protocol in ("SSL", "SASL_SSL")

    @property
    def has_sasl(self) -> bool:
        return self.security_protocol in ("SASL_PLAINTEXT", "SASL_SSL")

    @classmethod
    def from_file(cls, path: str) -> ClientSecurity:
        """The settings of a file of Kafka's client properties: `security.protocol`, `sasl.jaas.config`, `ssl.truststore.location`
        and so on. Other keys are ignored. Raises UsageError, in one sentence, if the file cannot be read or a value cannot be
        used; a warning is logged if other users of the machine may read a secret in it."""
        return security_of(read_file(path), path)

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> ClientSecurity:
        """The settings of Kafka's client properties. Other keys are ignored. Raises UsageError if a value cannot be used."""
        return cls(**settings_of(properties))


def security_of(properties: Mapping[str, str], path: str) -> ClientSecurity:
    """The settings of the properties that were read from this file. UsageError names the file."""
    try:
        return ClientSecurity(**settings_of_file(properties, path))
    except UsageError as e:
        raise UsageError(f"{path}: {e}") from None


def check(settings: ClientSecurity) -> None:
    """Raise UsageError if settings are unknown, missing, or contradict each other. None of its texts contains a secret."""
    protocol = settings.security_protocol
    if protocol not in PROTOCOLS:
        raise UsageError(f"security_protocol must be {_either(PROTOCOLS)}, not {protocol!r}")
    if settings.sasl_mechanism not in MECHANISMS:
        raise UsageError(f"sasl_mechanism must be {_either(MECHANISMS)}, not {settings.sasl_mechanism!r}")
    _check_used(settings, _OF_TLS, settings.has_tls, "encrypts nothing; choose SSL or SASL_SSL")
    _check_used(settings, _OF_SASL, settings.has_sasl, "has no SASL; choose SASL_SSL (or SASL_PLAINTEXT)")
    if settings.ssl_keyfile is not None and settings.ssl_certfile is None:
        raise UsageError("ssl_keyfile is given without ssl_certfile, the certificate that belongs to the key")
    if settings.has_sasl:
        _check_credentials(settings)


def _check_used(settings: ClientSecurity, names: tuple[str, ...], is_used: bool, why: str) -> None:
    given = next((name for name in names if getattr(settings, name) is not None), None)
    if given is not None and not is_used:
        raise UsageError(f"{given} is given, but security_protocol {settings.security_protocol} {why}")


def _check_credentials(settings: ClientSecurity) -> None:
    mechanism = settings.sasl_mechanism
    needed = ("sasl_oauth_token_provider",) if mechanism == OAUTHBEARER else ("sasl_plain_username", "sasl_plain_password")
    for name in needed:
        if not getattr(settings, name):
            raise UsageError(f"{settings.security_protocol} with {mechanism} needs {name}")
    for name in needed if mechanism != OAUTHBEARER else ():
        value = getattr(settings, name)
        if not isinstance(value, str):
            raise UsageError(f"{name} must be a str")
        if any("\ud800" <= character <= "\udfff" for character in value):
            raise UsageError(f"{name} cannot be encoded in UTF-8")


def _either(words: tuple[str, ...]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"


NO_SECURITY = ClientSecurity()
"""Plaintext connections, without authentication."""

SecurityOf = Callable[[str], ClientSecurity]
"""Returns the security of connections to a listener of this name on another node."""


def without_security(listener_name: str) -> ClientSecurity:
    """A `SecurityOf` of a cluster without security."""
    return NO_SECURITY
