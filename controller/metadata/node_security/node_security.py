"""The security of a running node: the objects that its listeners and its outgoing connections use.

The files are read when the node is created; a file that cannot be used raises a UsageError with one sentence. `reload` reads them
again: a listener uses the new certificate for its next connection, and open connections stay. If a file cannot be used, the
content that was read before stays in use; this does not keep the other files from taking effect. (Outgoing connections check by
themselves whether their files have changed.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from strandline.controller.metadata.node_security.settings import ListenerSettings, NodeSecuritySettings
from strandline.controller.metadata.node_security.users_file import Users, parse_users, pepper_of
from strandline.protocol.doors import Doors
from strandline.protocol.errors import BrokerError, ErrorCode, StrandlineError, UsageError
from strandline.protocol.loggers import get_logger
from strandline.protocol.messages.security import SCRAM_SHA_256, SCRAM_SHA_512
from strandline.protocol.security.client_security import NO_SECURITY, ClientSecurity
from strandline.protocol.security.listener_security import PLAINTEXT, ListenerSecurity
from strandline.protocol.security.mechanisms import OAUTHBEARER, PLAIN, SCRAM_256, SCRAM_512, MakeServerExchange
from strandline.protocol.security.scram import ScramCredential
from strandline.protocol.security.tls import ServerTls, ServerTlsSettings, read_client_context

logger = get_logger(__name__)

_NUMBERS = {SCRAM_256: SCRAM_SHA_256, SCRAM_512: SCRAM_SHA_512}
_FILE_KEYS = ("ssl.keystore.location", "ssl.keystore.key.location", "ssl.truststore.location", "sasl.scram.users.file")
"""Keys of files that are read again when they change."""
_Stamps = dict[str, tuple[int | None, int]]


class Files(Protocol):
    """The part of the file system (`storage/files.py`) that is used here. Each method raises StrandlineError if it fails."""

    def read(self, path: str) -> bytes: ...
    def modified_ms(self, path: str) -> int | None: ...
    def size(self, path: str) -> int: ...


class NodeSecurity:
    """The security of one node."""

    def __init__(self, settings: NodeSecuritySettings, files: Files, doors: Doors) -> None:
        """Raises UsageError if a file is missing or cannot be used."""
        self.settings = settings
        self.credentials: Callable[[], Mapping[tuple[str, int], ScramCredential]] = dict
        """Returns the SCRAM credentials of the metadata, by user and number of the mechanism."""
        self._files = files
        self._doors = doors
        self._users: dict[str, Users] = {}
        """Path of a file of users -> its content."""
        self._stamps: _Stamps = {}
        self._listeners: dict[str, ListenerSecurity] = {}
        """The own listeners that have a security protocol, by name."""
        self._clients: dict[str, ClientSecurity] = {}
        """Name of a listener on other nodes -> the security of connections to it."""
        self._open()

    def listener(self, name: str) -> ListenerSecurity | None:
        """The security of an own listener; None if it is plaintext."""
        return self._listeners.get(name)

    def to_listener(self, name: str) -> ClientSecurity:
        """The security of this node's connections to a broker's listener of this name. Raises BrokerError if the node has no user
        for it; that happens only on a controller, which does not know at its start which listeners brokers will register."""
        known = self._clients.get(name)
        if known is None:
            try:
                known = self._clients[name] = self._client(name, "sasl.mechanism.inter.broker.protocol")
            except UsageError as e:
                raise BrokerError(ErrorCode.SASL_AUTHENTICATION_FAILED, f"cannot log in to listener {name}: {e}") from None
        return known

    @property
    def to_brokers(self) -> ClientSecurity:
        """The security of a broker's connections to other brokers."""
        assert self.settings.to_brokers is not None
        return self.to_listener(self.settings.to_brokers)

    @property
    def to_controllers(self) -> ClientSecurity:
        """The security of this node's connections to controllers."""
        return self._to_controllers

    # -- files --------------------------------------------------------------------------------------------------------

    @property
    def watched_files(self) -> list[str]:
        """The files that are read again when they change."""
        return sorted({path for security in self.settings.own for key in _FILE_KEYS if (path := security.values[key])})

    @property
    def has_files(self) -> bool:
        """Whether a listener uses files that have to be read again when they change."""
        return bool(self._listeners and self.watched_files)

    def has_changed_files(self) -> bool:
        """Return True if a file is not as it was when it was last read. May run in another thread."""
        return self._stamps != self._stamps_now()

    def reload(self) -> None:
        """Read the files of certificates and users again. May run in another thread. If the files of a listener's certificate, or
        a file of users, cannot be used, their earlier content stays in use, and all others take effect. Then raises a UsageError
        with all errors."""
        self._stamps = self._stamps_now()
        reloads: list[Callable[[], None]] = [partial(self._reload_users, path) for path in self._users]
        reloads += [security.tls.reload for security in self._listeners.values() if security.tls is not None]
        errors: dict[str, None] = {}
        for reload in reloads:
            try:
                reload()
            except UsageError as e:
                errors[str(e)] = None  # Listeners may share a file: its error is named once.
        if errors:
            raise UsageError("; ".join(errors))

    def _reload_users(self, path: str) -> None:
        self._users[path] = self._read_users(path)

    def _stamps_now(self) -> _Stamps:
        return {path: self._stamp(path) for path in self.watched_files}

    def _stamp(self, path: str) -> tuple[int | None, int]:
        try:
            return self._files.modified_ms(path), self._files.size(path)
        except (StrandlineError, ValueError):
            return None, -1

    def _read(self, key: str, path: str) -> str:
        try:
            return self._files.read(path).decode()
        except StrandlineError as e:
            reason = "it does not exist" if getattr(e, "is_missing", False) else str(e)
            raise UsageError(f"config {key}: cannot read {path}: {reason}") from None
        except UnicodeDecodeError:
            raise UsageError(f"config {key}: {path} is not a text in UTF-8") from None
        except ValueError:
            raise UsageError(f"config {key}: {path!r} is not a path of a file") from None

    def _read_users(self, path: str) -> Users:
        return parse_users(self._read("sasl.scram.users.file", path), path)

    # -- listeners ----------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        self._stamps = self._stamps_now()  # Before the files are read: a change during the read is noticed later.
        for security in self.settings.own:
            if security.protocol != PLAINTEXT:
                self._listeners[security.name] = self._listener(security)
        if self.settings.to_brokers is not None:
            self._clients[self.settings.to_brokers] = self._client(
                self.settings.to_brokers, "sasl.mechanism.inter.broker.protocol"
            )
        self._to_controllers = self._client(self.settings.to_controllers, "sasl.mechanism.controller.protocol")

    def _listener(self, settings: ListenerSettings) -> ListenerSecurity:
        values = settings.values
        return ListenerSecurity(
            security_protocol=settings.protocol,
            tls=_tls(settings) if settings.has_tls else None,
            mechanisms=self._mechanisms(settings) if settings.has_sasl else {},
            max_reauth_ms=values["connections.max.reauth.ms"],
            receive_bytes_max=values["sasl.server.max.receive.size"],
            failed_delay_ms=self.settings.values["connection.failed.authentication.delay.ms"],
        )

    def _mechanisms(self, settings: ListenerSettings) -> dict[str, MakeServerExchange]:
        path = settings.values["sasl.scram.users.file"]
        if path and path not in self._users:
            self._users[path] = self._read_users(path)

        def look_up(user: str, mechanism: str) -> ScramCredential | None:
            found = self.credentials().get((user, _NUMBERS[mechanism]))
            return found or (self._users[path].get((user, mechanism)) if path else None)

        return {name: self._mechanism(name, settings, look_up) for name in settings.values["sasl.enabled.mechanisms"]}

    def _mechanism(
        self, name: str, settings: ListenerSettings, look_up: Callable[[str, str], ScramCredential | None]
    ) -> MakeServerExchange:
        if name == OAUTHBEARER:
            return _bearer(settings, self._doors)
        if name == PLAIN:
            from strandline.protocol.security.plain import plain_server

            return plain_server(look_up, self._doors.secure_random)
        from strandline.protocol.security.scram import scram_server

        # Nodes with the same file of users derive the same salts for users that do not exist. Without such a file each listener
        # has a secret of its own, and the salts differ from node to node.
        users = self._users.get(settings.values["sasl.scram.users.file"])
        return scram_server(name, look_up, self._doors.secure_random, pepper_of(users) if users else None)

    # -- outgoing connections -----------------------------------------------------------------------------------------

    def _client(self, name: str, mechanism_key: str) -> ClientSecurity:
        settings = self.settings.listener(name)
        if settings.protocol == PLAINTEXT:
            return NO_SECURITY
        client = self._client_of(settings, self.settings.values[mechanism_key])
        if client.has_tls:
            read_client_context(client)  # Files that cannot be used are reported at the start, and not by the first connection.
        return client

    def _client_of(self, settings: ListenerSettings, mechanism: str) -> ClientSecurity:
        values, tls, sasl = settings.values, settings.has_tls, settings.has_sasl
        return ClientSecurity(
            security_protocol=settings.protocol,
            ssl_cafile=values["ssl.truststore.location"] if tls else None,
            ssl_certfile=values["ssl.keystore.location"] if tls else None,
            ssl_keyfile=values["ssl.keystore.key.location"] if tls else None,
            ssl_password=values["ssl.key.password"] if tls else None,
            ssl_check_hostname=values["ssl.endpoint.identification.algorithm"] == "https",
            sasl_mechanism=mechanism,
            sasl_plain_username=values["sasl.node.username"] if sasl else None,
            sasl_plain_password=self._node_password(values) if sasl else None,
            random_bytes=self._doors.secure_random,
        )

    def _node_password(self, values: Mapping[str, str]) -> str:
        key = "sasl.node.password.file"
        if not values[key] or not values["sasl.node.username"]:
            raise UsageError(f"config {key} and sasl.node.username are missing")
        password = self._read(key, values[key]).rstrip("\r\n")
        if not password:
            raise UsageError(f"config {key}: {values[key]} is empty; it must have the password of {values['sasl.node.username']}")
        return password


def log_settings(settings: NodeSecuritySettings) -> None:
    """Warn, once per start, of the settings that may expose more than was meant."""
    _log_unauthenticated(settings)
    for listener in settings.without_client_auth:
        key = f"listener.name.{listener.name.lower()}.ssl.client.auth"
        logger.warning(
            "listener.client_auth_ignored",
            listener=f"{listener.name}://{listener.host}:{listener.port}",
            reason=f"ssl.client.auth counts only for listeners with the security protocol SSL; to ask the clients of this "
            f"listener for a certificate, too, set {key}",
        )


def _log_unauthenticated(settings: NodeSecuritySettings) -> None:
    """Warn of the listeners that accept clients from other machines without authentication."""
    for listener in settings.unauthenticated:
        logger.warning(
            "listener.unauthenticated",
            listener=f"{listener.name}://{listener.host}:{listener.port}",
            security_protocol=settings.protocol(listener.name),
            reason="other machines can reach this address, and their clients need not authenticate; use SASL_SSL, or SSL with "
            "ssl.client.auth=required",
        )


def _tls(settings: ListenerSettings) -> ServerTls:
    values = settings.values
    keystore = values["ssl.keystore.location"]
    return ServerTls(
        ServerTlsSettings(
            certfile=keystore,
            keyfile=values["ssl.keystore.key.location"] or keystore,
            key_password=values["ssl.key.password"],
            cafile=values["ssl.truststore.location"],
            client_auth=values["ssl.client.auth"],
            principal_mapping_rules=values["ssl.principal.mapping.rules"],
        )
    )


def _bearer(settings: ListenerSettings, doors: Doors) -> MakeServerExchange:
    """The mechanism OAUTHBEARER of a listener. A key set in a file is read at the start. One behind a URL is read when the first
    token arrives, because a node must be able to start while another server is down."""
    from strandline.protocol.security.jwks import Jwks, reader_of
    from strandline.protocol.security.oauthbearer import TokenRules, TokenVerifier, oauthbearer_server

    values = settings.values
    location = values["sasl.oauthbearer.jwks.endpoint.url"]
    jwks = Jwks(reader_of(location), doors.wall_clock_ms, values["sasl.oauthbearer.jwks.endpoint.refresh.ms"])
    if not location.startswith("http"):
        jwks.load()
    rules = TokenRules(
        sub_claim=values["sasl.oauthbearer.sub.claim.name"],
        expected_audience=tuple(values["sasl.oauthbearer.expected.audience"]),
        expected_issuer=values["sasl.oauthbearer.expected.issuer"],
        clock_skew_ms=values["sasl.oauthbearer.clock.skew.seconds"] * 1000,
    )
    return oauthbearer_server(TokenVerifier(jwks, rules, doors.wall_clock_ms))
