"""TLS contexts of listeners and of clients, and plain words for what goes wrong in a handshake.

TLS 1.2 or newer, without compression and without renegotiation. `ServerTls.context` may be replaced while the listener serves: a
handshake uses the context that is current when it begins, and open connections keep theirs. A context is built completely before
it replaces the old one, so files that do not fit together change nothing. Authorities of client certificates are replaced in the
same way.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, field

from strandline.protocol.errors import UsageError
from strandline.protocol.log_limits import printable
from strandline.protocol.loggers import get_logger
from strandline.protocol.security.client_security import ClientSecurity
from strandline.protocol.security.handshakes import ServerHandshake
from strandline.protocol.security.principal import ANONYMOUS, USER, Principal
from strandline.protocol.security.principal_mapping import PrincipalMapping, distinguished_name

logger = get_logger(__name__)

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
    """Decrypts the key."""
    cafile: str | None = None
    """The authorities whose client certificates are accepted (PEM)."""
    client_auth: str = "none"
    """`ssl.client.auth`: none, requested or required."""
    principal_mapping_rules: str = "DEFAULT"
    """`ssl.principal.mapping.rules`."""


class ServerTls:
    """The TLS of a listener."""

    def __init__(self, settings: ServerTlsSettings) -> None:
        """Raises UsageError if the files cannot be used."""
        self.settings = settings
        self._mapping = PrincipalMapping(settings.principal_mapping_rules)
        if settings.client_auth != "none":
            import cryptography.x509  # noqa: F401 - now, and not while the loop serves its first client
        self.context = server_context(settings)
        """The context of the next handshake."""

    def reload(self) -> None:
        """Read the files again. Raises UsageError if they cannot be used: the old certificate stays in use."""
        self.context = server_context(self.settings)

    def principal_of(self, certificate: bytes | None) -> Principal:
        """The principal of a client that presented `certificate` (DER); ANONYMOUS without one. Raises AuthenticationError."""
        if certificate is None:
            return ANONYMOUS
        return Principal(USER, self._mapping.name_of(distinguished_name(certificate)))


# -- contexts ---------------------------------------------------------------------------------------------------------


def server_context(settings: ServerTlsSettings) -> ssl.SSLContext:
    """The context of a listener. UsageError names the file that cannot be used."""
    if settings.client_auth not in CLIENT_AUTH:
        raise UsageError(f"ssl.client.auth is {settings.client_auth!r}; it must be {', '.join(CLIENT_AUTH)}")
    if settings.client_auth != "none" and settings.cafile is None:
        raise UsageError(f"ssl.client.auth={settings.client_auth} needs the authorities of the clients (ssl.truststore.location)")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sslobject_class = ServerHandshake
    _restrict(context)
    _load_certificate(context, settings.certfile, settings.keyfile, settings.key_password)
    if settings.cafile is not None:
        _load_authorities(context, settings.cafile)
    context.verify_mode = CLIENT_AUTH[settings.client_auth]
    return context


def client_context(security: ClientSecurity) -> ssl.SSLContext:
    """The context of outgoing connections. It is built once, and again if one of the files has changed; if the new files cannot
    be used, the old context stays in use. Raises UsageError if the files cannot be used and there is no old context."""
    if security.ssl_context is not None:
        return security.ssl_context
    kept, stamps = _client_contexts.get(security), _stamps(security)
    if kept is not None and kept[0] == stamps:
        return kept[1]
    try:
        return read_client_context(security)
    except UsageError as e:
        if kept is None:
            raise
        logger.warning("tls.reload_failed", reason=str(e))
        return _keep(security, stamps, kept[1])


def read_client_context(security: ClientSecurity) -> ssl.SSLContext:
    """The context from the present content of the files, whatever was read before. `client_context` returns it until the files
    can be used again after a change. Raises UsageError, which names the file that cannot be used."""
    stamps = _stamps(security)  # Before the files are read: a change during the read is noticed later.
    return _keep(security, stamps, _new_client_context(security))


_Stamps = tuple[tuple[int, int] | None, ...]
_CONTEXTS_MAX = 100
_client_contexts: dict[ClientSecurity, tuple[_Stamps, ssl.SSLContext]] = {}
"""Settings -> the state of the files when they were read, and the context."""


def _keep(security: ClientSecurity, stamps: _Stamps, context: ssl.SSLContext) -> ssl.SSLContext:
    if len(_client_contexts) >= _CONTEXTS_MAX:
        _client_contexts.clear()
    _client_contexts[security] = stamps, context
    return context


def _stamps(security: ClientSecurity) -> _Stamps:
    return tuple(_stamp(file) for file in (security.ssl_cafile, security.ssl_certfile, security.ssl_keyfile))


def _new_client_context(security: ClientSecurity) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _restrict(context)
    context.check_hostname = security.ssl_check_hostname
    if security.ssl_cafile is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        _load_authorities(context, security.ssl_cafile)
    if security.ssl_certfile is not None:
        _load_certificate(context, security.ssl_certfile, security.ssl_keyfile, security.ssl_password)
    return context


def _restrict(context: ssl.SSLContext) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION


def _load_certificate(context: ssl.SSLContext, certfile: str, keyfile: str | None, password: str | None) -> None:
    def give_password() -> str:
        if password is None:
            raise UsageError(f"the key {keyfile or certfile} is encrypted, and no password is configured for it")
        return password

    names = certfile if keyfile in (None, certfile) else f"{certfile} with the key {keyfile}"
    try:
        context.load_cert_chain(certfile, keyfile, give_password)
    except ssl.SSLError as e:
        raise UsageError(f"cannot use the certificate {names}: {_LOAD_ERRORS.get(e.reason, _reason(e))}") from None
    except OSError as e:
        raise UsageError(f"cannot read the certificate {names}: {os.strerror(e.errno) if e.errno else e}") from None
    except ValueError:
        raise UsageError(f"cannot read the certificate {names!r}: that is not a path of a file") from None


def _load_authorities(context: ssl.SSLContext, cafile: str) -> None:
    try:
        context.load_verify_locations(cafile)
    except ssl.SSLError as e:
        raise UsageError(f"cannot use the authorities in {cafile}: {_LOAD_ERRORS.get(e.reason, _reason(e))}") from None
    except OSError as e:
        raise UsageError(f"cannot read the authorities in {cafile}: {os.strerror(e.errno) if e.errno else e}") from None
    except ValueError:
        raise UsageError(f"cannot read the authorities in {cafile!r}: that is not a path of a file") from None


_LOAD_ERRORS = {
    "KEY_VALUES_MISMATCH": "the key does not belong to the certificate",
    "NO_CERTIFICATE_ASSIGNED": "the key does not belong to the certificate",
    "NO_START_LINE": "it is not a PEM file",
    "NO_CERTIFICATE_OR_CRL_FOUND": "it is not a PEM file with certificates",
    "PEM_LIB": "it is not a PEM file, or it is incomplete",
    None: "it is not a PEM file, it is incomplete, or the password of the key is wrong",
}


def _stamp(file: str | None) -> tuple[int, int] | None:
    if file is None:
        return None
    try:
        state = os.stat(file)
    except OSError:
        return None
    return state.st_mtime_ns, state.st_size


# -- plain words ------------------------------------------------------------------------------------------------------

_VERIFY_ERRORS = {
    9: "the certificate is not valid yet",
    10: "the certificate has expired",
    18: "the certificate signs itself, and is not among the trusted ones",
    19: "the certificate comes from an authority that is not trusted",
    20: "the certificate comes from an authority that is not trusted",
    21: "the certificate comes from an authority that is not trusted",
    26: "the certificate is not made for this purpose",
    62: "the certificate is for another host",
    64: "the certificate is for another host",
}
"""OpenSSL's `X509_V_ERR_` number -> the text."""

_REASONS = {
    "WRONG_VERSION_NUMBER": "the peer does not speak TLS on this port",
    "SSLV3_ALERT_UNEXPECTED_MESSAGE": "the peer speaks plaintext on this port (security_protocol)",
    "HTTP_REQUEST": "the peer speaks HTTP",
    "UNSUPPORTED_PROTOCOL": "the peer speaks only versions of TLS before 1.2",
    "TLSV1_ALERT_PROTOCOL_VERSION": "the peer does not accept this version of TLS",
    "NO_SHARED_CIPHER": "the two ends have no cipher in common",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": (
        "the peer rejected the handshake; it may require a certificate (ssl_certfile), or another cipher"
    ),
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the peer presented no certificate",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the peer requires a certificate (ssl_certfile)",
    "TLSV1_ALERT_UNKNOWN_CA": "the peer does not trust the authority of this end's certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the peer rejected this end's certificate: it is not valid yet, or malformed",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the peer rejected this end's certificate: it has expired",
    "SSLV3_ALERT_CERTIFICATE_REVOKED": "the peer rejected this end's certificate: it is revoked",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": "the peer rejected this end's certificate: it is not made for this purpose",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the peer rejected this end's certificate",
    "UNEXPECTED_EOF_WHILE_READING": "the peer closed the connection during the TLS handshake",
}


def describe_tls_error(e: BaseException) -> str:
    """Why a TLS handshake failed, in plain words."""
    if isinstance(e, ssl.SSLCertVerificationError):
        return _VERIFY_ERRORS.get(e.verify_code, f"the certificate cannot be verified: {e.verify_message}")
    if isinstance(e, ssl.SSLError):
        return _REASONS.get(_reason(e), f"the TLS handshake failed: {printable(_reason(e))}")
    if isinstance(e, TimeoutError) or "taking longer" in str(e):
        return "the TLS handshake was not complete in time"
    return "the peer closed the connection during the TLS handshake"


def _reason(e: ssl.SSLError) -> str:
    return e.reason or str(e)
