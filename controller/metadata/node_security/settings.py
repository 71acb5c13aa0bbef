"""The security settings in a node's configuration: the protocol and the keys of each listener, its own and those of other nodes.

Everything here follows from the keys alone; no file is opened. Settings that cannot work, or would expose what they should
protect, are refused with one sentence, so that a node with a gap does not start.

    listener of                named by
    this broker                listeners
    other brokers              inter.broker.listener.name, on brokers; on controllers the names that brokers register
    the controllers            controller.listener.names, on brokers; on controllers their own listener of the quorum
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from strandline.controller.metadata.node_security.overrides import Overrides, refuse_unknown_listeners
from strandline.controller.metadata.security_keys import PER_LISTENER, parse_super_users
from strandline.protocol.errors import UsageError
from strandline.protocol.messages.common import Listener
from strandline.protocol.security.listener_security import (
    PLAINTEXT,
    SASL_PLAINTEXT,
    SASL_SSL,
    SECURITY_PROTOCOLS,
    SSL,
    is_loopback,
    refuse_plain_without_tls,
)
from strandline.protocol.security.mechanisms import OAUTHBEARER, PLAIN
from strandline.protocol.security.principal import ANONYMOUS

_MAP = "listener.security.protocol.map"
_CLIENT_AUTH = "ssl.client.auth"
_PER_LISTENER = tuple(key.name for key in PER_LISTENER)


@dataclass(frozen=True, slots=True)
class ListenerSettings:
    """A listener's name, its security protocol, and its values of the keys of `PER_LISTENER`."""

    name: str
    protocol: str
    values: Mapping[str, Any] = field(repr=False)

    @property
    def has_tls(self) -> bool:
        return self.protocol in (SSL, SASL_SSL)

    @property
    def has_sasl(self) -> bool:
        return self.protocol in (SASL_PLAINTEXT, SASL_SSL)

    @property
    def authenticates(self) -> bool:
        """Whether every client of the listener has a principal of its own."""
        return self.has_sasl or (self.has_tls and self.values["ssl.client.auth"] == "required")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSecuritySettings:
    """The security settings of one node."""

    listeners: tuple[Listener, ...]
    """The node's own listeners."""
    to_brokers: str | None
    """The name of the listener at which this node reaches brokers; None on controllers: each broker registers its own."""
    to_controllers: str
    """The name of the listener at which this node reaches controllers."""
    values: Mapping[str, Any] = field(repr=False)
    """Every key of the node; some are secrets."""
    overrides: Overrides = field(repr=False)
    protocols: Mapping[str, str]
    """`listener.security.protocol.map`: upper-case name -> protocol."""

    @classmethod
    def of(
        cls,
        listeners: Sequence[Listener],
        *,
        to_brokers: str | None,
        to_controllers: str,
        values: Mapping[str, Any],
        overrides: Overrides,
    ) -> NodeSecuritySettings:
        """The checked settings. Raises UsageError, with one sentence, if they contradict each other or expose what they should
        protect."""
        settings = cls(
            listeners=tuple(listeners),
            to_brokers=to_brokers,
            to_controllers=to_controllers,
            values=values,
            overrides=overrides,
            protocols=_protocol_map(values[_MAP]),
        )
        known = [*(listener.name for listener in listeners), to_brokers or "", to_controllers, *settings.protocols]
        refuse_unknown_listeners(overrides, [name for name in known if name])
        _check(settings)
        return settings

    def listener(self, name: str) -> ListenerSettings:
        """The settings of the listener of this name, on this node or another one."""
        own = self.overrides.get(name.lower(), {})
        values = {key: own.get(key, self.values[key]) for key in _PER_LISTENER}
        if self._ignores_client_auth(name):
            values[_CLIENT_AUTH] = "none"
        return ListenerSettings(name, self.protocol(name), values)

    def _ignores_client_auth(self, name: str) -> bool:
        """Clients of a SASL_SSL listener have their principals from SASL. So they need a certificate only if the listener's own
        key asks for it, as in Kafka."""
        is_asked = self.values[_CLIENT_AUTH] != "none"
        return is_asked and self.protocol(name) == SASL_SSL and _CLIENT_AUTH not in self.overrides.get(name.lower(), {})

    @property
    def without_client_auth(self) -> list[Listener]:
        """The own listeners for which `ssl.client.auth` does not count, although it is set."""
        return [listener for listener in self.listeners if self._ignores_client_auth(listener.name)]

    def protocol(self, name: str) -> str:
        """The security protocol of the listener of this name. A name that the map does not have stands for itself, or for
        PLAINTEXT."""
        upper = name.upper()
        return self.protocols.get(upper, upper if upper in SECURITY_PROTOCOLS else PLAINTEXT)

    @property
    def own(self) -> list[ListenerSettings]:
        """The settings of the node's own listeners, in their order."""
        return [self.listener(listener.name) for listener in self.listeners]

    @property
    def is_controller(self) -> bool:
        return self.to_brokers is None

    @property
    def is_open(self) -> bool:
        """Whether no listener that the node serves or connects to has any security."""
        names = [*(listener.name for listener in self.listeners), self.to_brokers, self.to_controllers]
        return not self.protocols and all(self.protocol(name) == PLAINTEXT for name in names if name)

    @property
    def unauthenticated(self) -> list[Listener]:
        """The own listeners that other machines can reach, and that accept peers without authentication."""
        pairs = zip(self.listeners, self.own, strict=True)
        return [listener for listener, security in pairs if not security.authenticates and not is_loopback(listener.host)]


# -- the protocol map -------------------------------------------------------------------------------------------------


def _protocol_map(items: Sequence[str]) -> dict[str, str]:
    protocols: dict[str, str] = {}
    for item in items:
        name, colon, protocol = (part.strip() for part in item.partition(":"))
        if not colon or not name:
            raise UsageError(f"config {_MAP}: {item!r} is not of the form NAME:PROTOCOL")
        if protocol not in SECURITY_PROTOCOLS:
            known = ", ".join(SECURITY_PROTOCOLS)
            raise UsageError(f"config {_MAP}: {protocol!r} is not a security protocol; use one of {known}")
        if protocols.setdefault(name.upper(), protocol) != protocol:
            raise UsageError(f"config {_MAP} names {name} twice")
    return protocols


# -- checks -----------------------------------------------------------------------------------------------------------


def _check(settings: NodeSecuritySettings) -> None:
    names = [listener.name for listener in settings.listeners]
    for name in (*names, settings.to_brokers, settings.to_controllers):
        if name:
            _check_mapped(settings, name)
    for listener in settings.listeners:
        _check_own(settings.listener(listener.name), listener)
    for name, mechanism in (
        (settings.to_brokers, "sasl.mechanism.inter.broker.protocol"),
        (settings.to_controllers, "sasl.mechanism.controller.protocol"),
    ):
        if name:
            _check_outgoing(settings, settings.listener(name), mechanism)
    _check_quorum_users(settings)
    _check_authorizer(settings)


def _check_mapped(settings: NodeSecuritySettings, name: str) -> None:
    """Without a map, a listener whose name is no protocol is PLAINTEXT. With a map, such a listener must be in it: if it was
    forgotten there, it must not become PLAINTEXT."""
    if settings.protocols and name.upper() not in settings.protocols and name.upper() not in SECURITY_PROTOCOLS:
        raise UsageError(f"config {_MAP} has no security protocol for listener {name}; add {name}:SASL_SSL, or another one")


def _check_own(security: ListenerSettings, listener: Listener) -> None:
    values, has = security.values, f"listener {security.name} has the security protocol {security.protocol}"
    if security.has_tls:
        if not values["ssl.keystore.location"]:
            raise UsageError(
                f"config ssl.keystore.location is missing: {has}, so it needs a certificate (`strandline cert node`)"
            )
        if values["ssl.client.auth"] != "none" and not values["ssl.truststore.location"]:
            auth = values["ssl.client.auth"]
            raise UsageError(
                f"config ssl.truststore.location is missing: ssl.client.auth is {auth}, so listener {security.name} needs the "
                f"certificates of the authorities that it trusts"
            )
    mechanisms = values["sasl.enabled.mechanisms"]
    if security.has_sasl and not mechanisms:
        raise UsageError(f"config sasl.enabled.mechanisms is empty: {has}, so it needs a mechanism, such as SCRAM-SHA-512")
    if security.has_sasl and OAUTHBEARER in mechanisms and not values["sasl.oauthbearer.jwks.endpoint.url"]:
        raise UsageError(
            f"config sasl.oauthbearer.jwks.endpoint.url is missing: listener {security.name} offers OAUTHBEARER, and needs "
            f"the keys that sign tokens"
        )
    refuse_plain_without_tls(security.protocol, mechanisms, security.name, listener.host)


def _check_outgoing(settings: NodeSecuritySettings, security: ListenerSettings, mechanism_key: str) -> None:
    """Raise UsageError if this node cannot authenticate itself, or would expose its password, at a listener of other nodes."""
    if not security.has_sasl:
        return
    for key in ("sasl.node.username", "sasl.node.password.file"):
        if not security.values[key]:
            raise UsageError(
                f"config {key} is missing: listener {security.name} of other nodes has the security protocol "
                f"{security.protocol}, so this node needs a user there"
            )
    mechanism = settings.values[mechanism_key]
    if mechanism == PLAIN and security.protocol == SASL_PLAINTEXT:
        raise UsageError(
            f"config {mechanism_key}: PLAIN without TLS would send the password of this node in plain text to listener "
            f"{security.name}; use a SCRAM mechanism"
        )
    offered = security.values["sasl.enabled.mechanisms"]
    is_own = security.name == (settings.to_controllers if settings.is_controller else settings.to_brokers)
    if is_own and mechanism not in offered:
        raise UsageError(
            f"config {mechanism_key} is {mechanism}, and listener {security.name} offers only {', '.join(offered)} "
            f"(sasl.enabled.mechanisms)"
        )


def _check_quorum_users(settings: NodeSecuritySettings) -> None:
    """Raise UsageError if controllers need users and there is no file of users: before the first election there is no
    metadata."""
    security = settings.listener(settings.to_controllers)
    if settings.is_controller and security.has_sasl and not security.values["sasl.scram.users.file"]:
        raise UsageError(
            f"config sasl.scram.users.file is missing: controllers authenticate each other on listener {security.name} before "
            f"there is metadata, so their users must be in a file"
        )


def _check_authorizer(settings: NodeSecuritySettings) -> None:
    if settings.values["authorizer.class.name"] is None:
        return
    super_users = parse_super_users(settings.values["super.users"])
    if not super_users:
        raise UsageError(
            "config super.users is missing: with authorizer.class.name, requests need rights, and only a super user can give the "
            "first ones; name one, and the principals of the nodes: User:admin;User:broker-1"
        )
    nobody_has_rights = ANONYMOUS not in super_users and not settings.values["allow.everyone.if.no.acl.found"]
    if nobody_has_rights and all(_is_anonymous(listener) for listener in settings.own):
        raise UsageError(
            f"config authorizer.class.name: every client of this node is {ANONYMOUS}, because no listener authenticates its "
            f"clients, so no request could have rights; use a listener with SASL_SSL, or with SSL and ssl.client.auth=required"
        )


def _is_anonymous(listener: ListenerSettings) -> bool:
    return not listener.has_sasl and (not listener.has_tls or listener.values["ssl.client.auth"] == "none")
