"""The keys of security: listeners, TLS, SASL and the authorizer. A part of the table in `node_keys.py`.

A key of `PER_LISTENER` may differ between the listeners of a node: `listener.name.<lower-case name of the listener>.<key>` counts
for that listener, and the plain key for all others. The same keys describe how the node authenticates itself when it connects to
a listener of that name on another node.

Two groups of keys have no counterpart in Apache Kafka, which puts users and passwords into `sasl.jaas.config`, a text that names
Java classes: `sasl.node.*`, and the file of users.
"""

from __future__ import annotations

from strandline.controller.metadata.config_keys import ConfigKey, without_blanks
from strandline.protocol.errors import UsageError
from strandline.protocol.security.mechanisms import MECHANISMS, PLAIN, SCRAM_256, SCRAM_512
from strandline.protocol.security.principal import Principal

STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
NODE_MECHANISMS = (SCRAM_256, SCRAM_512, PLAIN)
"""Mechanisms by which nodes authenticate to each other. A token for OAUTHBEARER would come from a server that may be down."""


def _check_super_users(value: str) -> str | None:
    try:
        parse_super_users(value)
    except UsageError as e:
        return str(e)
    return None


def parse_super_users(value: str | None) -> frozenset[Principal]:
    """The principals of `super.users`. They are separated by semicolons, because distinguished names have commas."""
    return frozenset(Principal.parse(item.strip()) for item in (value or "").split(";") if item.strip())


_LISTENERS = (
    ConfigKey(
        "listener.security.protocol.map",
        "list",
        [],
        "",
        "the security protocol of each listener, of this node and of others: NAME:PROTOCOL, ...; the protocols are PLAINTEXT, "
        "SSL, SASL_PLAINTEXT and SASL_SSL. Names of protocols stand for themselves; without this key, all others are PLAINTEXT",
    ),
)

CONTROLLER_LISTENER_NAMES = ConfigKey(
    "controller.listener.names",
    "string",
    "CONTROLLER",
    "",
    "the name of the controllers' listener, by which listener.security.protocol.map and listener.name.* say how brokers connect",
    check=without_blanks,
)
"""A key of brokers. A controller finds its own listener by the port in controller.quorum.voters."""

_TLS = (
    ConfigKey(
        "ssl.keystore.location",
        "string",
        None,
        "",
        "the file with this node's certificate, its chain, and its key if ssl.keystore.key.location names no other file (PEM)",
    ),
    ConfigKey(
        "ssl.keystore.key.location",
        "string",
        None,
        "",
        "the file with the key of the certificate (PEM), if it is not in ssl.keystore.location (not in Apache Kafka)",
    ),
    ConfigKey(
        "ssl.key.password",
        "string",
        None,
        "",
        "the password of the key; keep it in a file that only the node can read, or in STRANDLINE_SSL_KEY_PASSWORD",
        sensitive=True,
    ),
    ConfigKey(
        "ssl.truststore.location",
        "string",
        None,
        "",
        "the file with the certificates of the authorities that this node trusts (PEM): for client certificates, and for other "
        "nodes; without it, the authorities of the system vouch for other nodes, and no client certificate is accepted",
    ),
    ConfigKey(
        "ssl.client.auth",
        "string",
        "none",
        "",
        "whether clients need a certificate: none, requested (one that is sent must be valid), or required; it does not count "
        "for listeners with SASL_SSL, which need a key of their own (listener.name.<name>.ssl.client.auth)",
        choices=("none", "requested", "required"),
    ),
    ConfigKey(
        "ssl.principal.mapping.rules",
        "string",
        "DEFAULT",
        "",
        "how the name of a client certificate becomes a principal: RULE:pattern/replacement/[L|U], ..., DEFAULT; the first rule "
        "that matches counts, and DEFAULT is the whole distinguished name",
    ),
    ConfigKey(
        "ssl.endpoint.identification.algorithm",
        "string",
        "https",
        "",
        "https: the certificate of another node must name the host that this node connects to; empty: it need not",
        choices=("https", ""),
    ),
)

_SASL = (
    ConfigKey(
        "sasl.enabled.mechanisms",
        "list",
        [],
        "",
        "the SASL mechanisms that a listener with SASL offers (Apache Kafka: GSSAPI)",
        choices=MECHANISMS,
    ),
    ConfigKey(
        "sasl.scram.users.file",
        "string",
        None,
        "",
        "a file with users and their credentials (TOML), for those that must exist before the metadata: nodes, and a first "
        "administrator; a credential in the metadata counts first (not in Apache Kafka)",
    ),
    ConfigKey("sasl.node.username", "string", None, "", "the user that this node is for other nodes (not in Apache Kafka)"),
    ConfigKey(
        "sasl.node.password.file",
        "string",
        None,
        "",
        "a file with the password of sasl.node.username, and nothing else (not in Apache Kafka)",
    ),
    ConfigKey(
        "connections.max.reauth.ms",
        "long",
        0,
        "ms",
        "a client with SASL must authenticate again within this time, or its connection is closed; 0: never",
        min=0,
    ),
    ConfigKey(
        "sasl.server.max.receive.size",
        "int",
        512 << 10,
        "bytes",
        "the largest request that is accepted before the client is authenticated",
        min=1024,
    ),
)

_OAUTHBEARER = (
    ConfigKey(
        "sasl.oauthbearer.jwks.endpoint.url",
        "string",
        None,
        "",
        "where the keys (JWKS) are that sign tokens: an https:// address, or file:///path",
    ),
    ConfigKey(
        "sasl.oauthbearer.jwks.endpoint.refresh.ms", "long", 3_600_000, "ms", "how often the keys are read again", min=1000
    ),
    ConfigKey("sasl.oauthbearer.expected.audience", "list", [], "", "a token must be for one of these audiences; empty: for any"),
    ConfigKey("sasl.oauthbearer.expected.issuer", "string", None, "", "a token must have this issuer; without a value: any"),
    ConfigKey("sasl.oauthbearer.sub.claim.name", "string", "sub", "", "the claim that holds the user"),
    ConfigKey(
        "sasl.oauthbearer.clock.skew.seconds", "int", 30, "s", "how far the clocks of issuer and node may differ", min=0, max=3600
    ),
)

PER_LISTENER: tuple[ConfigKey, ...] = (*_TLS, *_SASL, *_OAUTHBEARER)
"""Keys that may be given as `listener.name.<name>.<key>`, too."""

_NODE = (
    ConfigKey(
        "connection.failed.authentication.delay.ms",
        "int",
        100,
        "ms",
        "a failed authentication is answered, and its connection closed, after this time",
        min=0,
    ),
    ConfigKey(
        "sasl.mechanism.inter.broker.protocol",
        "string",
        SCRAM_512,
        "",
        "the mechanism by which this node authenticates to brokers (Apache Kafka: GSSAPI)",
        choices=NODE_MECHANISMS,
    ),
    ConfigKey(
        "sasl.mechanism.controller.protocol",
        "string",
        SCRAM_512,
        "",
        "the mechanism by which this node authenticates to controllers (Apache Kafka: GSSAPI)",
        choices=NODE_MECHANISMS,
    ),
)

_AUTHORIZER = (
    ConfigKey(
        "authorizer.class.name",
        "string",
        None,
        "",
        "StandardAuthorizer: requests need the rights that access control lists (ACLs) give; without a value, everyone may do "
        "everything",
        choices=("StandardAuthorizer", STANDARD_AUTHORIZER),
    ),
    ConfigKey(
        "super.users",
        "string",
        None,
        "",
        "principals that may do everything, separated by semicolons: User:admin;User:broker-1",
        check=_check_super_users,
    ),
    ConfigKey(
        "allow.everyone.if.no.acl.found",
        "boolean",
        False,
        "",
        "whether everyone may use a resource that no ACL names",
    ),
)

SECURITY_KEYS: tuple[ConfigKey, ...] = (*_LISTENERS, *PER_LISTENER, *_NODE, *_AUTHORIZER)
"""Keys of brokers and of controllers."""
