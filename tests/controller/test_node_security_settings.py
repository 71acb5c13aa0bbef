"""The security settings of a node's configuration, and the configurations that are refused because they have a gap."""

from __future__ import annotations

from typing import Any

import pytest

from strandline.broker.config import BrokerConfig
from strandline.controller.config import ControllerConfig
from strandline.controller.metadata.config_describe import describe_broker
from strandline.controller.metadata.image import MetadataImage
from strandline.protocol.errors import UsageError

BROKER = {"node.id": 1, "log.dirs": "d", "controller.quorum.voters": "101@c:9093", "advertised.listeners": None}
CONTROLLER = {"node.id": 101, "log.dirs": "d", "controller.quorum.voters": "101@c:9093"}
TLS = {"ssl.keystore.location": "node.pem", "ssl.truststore.location": "ca.pem"}
SASL = {**TLS, "sasl.enabled.mechanisms": "SCRAM-SHA-512", "sasl.node.username": "node", "sasl.node.password.file": "password"}
SECRET = "correct horse battery staple"


def of(base: dict[str, Any], *layers: dict[str, Any]) -> Any:
    mapping = {k: v for k, v in base.items() if v is not None}
    for layer in layers:
        mapping |= layer
    return (BrokerConfig if base is BROKER else ControllerConfig).from_mapping(mapping)


def listens(*listeners: str) -> dict[str, Any]:
    return {"listeners": ",".join(listeners)}


# -- protocols --------------------------------------------------------------------------------------------------------


def test_names_of_protocols_stand_for_themselves() -> None:
    security = of(BROKER, SASL, listens("SASL_SSL://b:9092", "PLAINTEXT://b:9093")).security
    assert [listener.protocol for listener in security.own] == ["SASL_SSL", "PLAINTEXT"]


def test_other_names_are_plaintext_without_a_map() -> None:
    """Configurations of earlier versions keep their meaning."""
    config = of(BROKER, listens("INTERNAL://b:9092", "EXTERNAL://b:9093"))
    assert {listener.protocol for listener in config.security.own} == {"PLAINTEXT"}
    assert config.security.is_open


def test_a_map_gives_every_listener_its_protocol() -> None:
    protocols = {"listener.security.protocol.map": "INTERNAL:SSL,EXTERNAL:SASL_SSL,CONTROLLER:SSL"}
    security = of(BROKER, SASL, protocols, listens("INTERNAL://b:9092", "EXTERNAL://b:9093")).security
    assert [listener.protocol for listener in security.own] == ["SSL", "SASL_SSL"]
    assert security.protocol(security.to_controllers) == "SSL"


def test_a_key_may_differ_between_listeners() -> None:
    keys = {"listener.name.internal.ssl.client.auth": "required", "ssl.client.auth": "requested"}
    protocols = {"listener.security.protocol.map": "INTERNAL:SSL,EXTERNAL:SSL,CONTROLLER:SSL"}
    security = of(BROKER, TLS, keys, protocols, listens("INTERNAL://b:9092", "EXTERNAL://b:9093")).security
    assert [listener.values["ssl.client.auth"] for listener in security.own] == ["required", "requested"]


def test_clients_with_sasl_need_a_certificate_only_if_their_listener_asks() -> None:
    """As in Kafka: without a prefix, the key applies to listeners with SSL. The node's log names the listeners to which it does
    not."""
    protocols = {"listener.security.protocol.map": "CERTIFICATES:SSL,USERS:SASL_SSL,BOTH:SASL_SSL,CONTROLLER:SSL"}
    keys = {"ssl.client.auth": "required", "listener.name.both.ssl.client.auth": "required"}
    names = ("CERTIFICATES", "USERS", "BOTH")
    security = of(BROKER, SASL, protocols, keys, listens(*(f"{name}://b:{port}" for port, name in enumerate(names, 1)))).security
    assert [listener.values["ssl.client.auth"] for listener in security.own] == ["required", "none", "required"]
    assert [listener.name for listener in security.without_client_auth] == ["USERS"]
    plain = of(BROKER, SASL, protocols, listens("USERS://b:1")).security
    assert plain.without_client_auth == []


def test_a_controller_may_have_two_listeners() -> None:
    """With two listeners a quorum can change from plaintext to TLS: the voters name one port, and then the other."""
    protocols = {"listener.security.protocol.map": "OLD:PLAINTEXT,NEW:SSL"}
    for port, first in ((9093, "OLD"), (9094, "NEW")):
        voters = {"controller.quorum.voters": f"101@c:{port}"}
        config = of(CONTROLLER, TLS, protocols, listens("OLD://c:9093", "NEW://c:9094"), voters)
        assert config.listeners[0].name == first == config.security.to_controllers


# -- what is refused --------------------------------------------------------------------------------------------------

MAP = "listener.security.protocol.map"
REFUSED: list[tuple[dict[str, Any], list[dict[str, Any]], str]] = [
    (BROKER, [listens("A://b:1"), {MAP: "A"}], "not of the form NAME:PROTOCOL"),
    (BROKER, [listens("A://b:1"), {MAP: "A:TLS"}], "'TLS' is not a security protocol; use one of PLAINTEXT, SSL"),
    (BROKER, [listens("A://b:1"), {MAP: "A:SSL,A:PLAINTEXT"}], "names A twice"),
    (BROKER, [listens("A://b:1", "B://b:2"), {MAP: "A:PLAINTEXT,CONTROLLER:SSL"}], "no security protocol for listener B"),
    (BROKER, [listens("A://b:1"), {MAP: "A:PLAINTEXT"}], "no security protocol for listener CONTROLLER"),
    (BROKER, [listens("SSL://b:1")], "ssl.keystore.location is missing: listener SSL"),
    (BROKER, [listens("SSL://b:1"), {"ssl.keystore.location": "n", "ssl.client.auth": "required"}], "ssl.truststore.location"),
    (BROKER, [listens("SASL_SSL://b:1"), TLS], "sasl.enabled.mechanisms is empty"),
    (BROKER, [listens("SASL_SSL://b:1"), SASL, {"sasl.enabled.mechanisms": "GSSAPI"}], "must be one of SCRAM-SHA-256"),
    (BROKER, [listens("SASL_SSL://b:1"), {**SASL, "sasl.node.username": None}], "sasl.node.username is missing"),
    (BROKER, [listens("SASL_SSL://b:1"), SASL, {"sasl.mechanism.inter.broker.protocol": "PLAIN"}], "offers only SCRAM-SHA-512"),
    (BROKER, [listens("SASL_SSL://b:1"), SASL, {"sasl.enabled.mechanisms": "OAUTHBEARER"}], "jwks.endpoint.url is missing"),
    (BROKER, [listens("SASL_PLAINTEXT://b:1"), SASL, {"sasl.enabled.mechanisms": "PLAIN"}], "passwords would cross the network"),
    (BROKER, [{"listener.name.other.ssl.client.auth": "none"}], "there is no listener 'other'"),
    (BROKER, [{"listener.name.PLAINTEXT.ssl.client.auth": "none"}], "lower case"),
    (BROKER, [{"listener.name.plaintext.ssl.client.oath": "none"}], "did you mean 'ssl.client.auth'"),
    (BROKER, [{"listener.name.plaintext.ssl.client.auth": "no"}], "listener.name.plaintext.ssl.client.auth: 'no' is not allowed"),
    (BROKER, [{"authorizer.class.name": "StandardAuthorizer"}], "super.users is missing"),
    (BROKER, [{"authorizer.class.name": "StandardAuthorizer", "super.users": "User:admin"}], "no listener authenticates"),
    (BROKER, [{"super.users": "admin"}], "is not a principal"),
    (CONTROLLER, [listens("SASL_SSL://c:9093"), SASL], "sasl.scram.users.file is missing: controllers authenticate"),
    (CONTROLLER, [listens("A://c:9093"), {MAP: "B:SSL"}], "no security protocol for listener A"),
]


@pytest.mark.parametrize(("base", "layers", "words"), REFUSED, ids=[words for _, _, words in REFUSED])
def test_a_configuration_with_a_gap_is_refused(base: dict[str, Any], layers: list[dict[str, Any]], words: str) -> None:
    with pytest.raises(UsageError) as refused:
        of(base, *layers)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_plain_without_tls_is_accepted_on_loopback() -> None:
    """This is for tests, and for a proxy on the same machine that does TLS."""
    keys = {"sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512"}
    assert of(BROKER, SASL, keys, listens("SASL_PLAINTEXT://127.0.0.1:1")).security.own[0].has_sasl


def test_an_authorizer_may_rest_on_client_certificates() -> None:
    rights = {"authorizer.class.name": "StandardAuthorizer", "super.users": "User:CN=admin,O=us;User:broker-1"}
    of(BROKER, TLS, rights, {"ssl.client.auth": "required"}, listens("SSL://b:1"))


def test_an_authorizer_may_only_forbid() -> None:
    """If everyone may do what no ACL is about, ACLs that deny do not need authenticated clients."""
    rights = {"authorizer.class.name": "StandardAuthorizer", "super.users": "User:admin"}
    of(BROKER, rights, {"allow.everyone.if.no.acl.found": True})


@pytest.mark.parametrize(
    ("listener", "keys", "is_open"),
    [
        ("PLAINTEXT://0.0.0.0:1", {}, True),
        ("SSL://0.0.0.0:1", TLS, True),
        ("SSL://0.0.0.0:1", {**TLS, "ssl.client.auth": "required"}, False),
        ("SASL_SSL://0.0.0.0:1", SASL, False),
        ("PLAINTEXT://127.0.0.1:1", {}, False),
        ("PLAINTEXT://[::1]:1", {}, False),
    ],
)
def test_listeners_that_anyone_may_use_are_known(listener: str, keys: dict[str, Any], is_open: bool) -> None:
    """They are logged once, as a warning, when the node starts."""
    name = listener.partition(":")[0]
    config = of(BROKER, keys, listens(listener), {"advertised.listeners": f"{name}://b:1"})
    assert [found.name for found in config.security.unauthenticated] == ([name] if is_open else [])


# -- secrets ----------------------------------------------------------------------------------------------------------


def test_the_password_of_a_key_is_never_shown() -> None:
    """F33: not in a repr, not by DescribeConfigs, and not in an error."""
    config = of(BROKER, TLS, listens("SSL://127.0.0.1:1"), {"ssl.key.password": SECRET})
    assert config.values["ssl.key.password"] == SECRET
    assert SECRET not in repr(config)
    assert SECRET not in repr(config.security)
    assert SECRET not in repr(config.security.own)
    assert config.text("ssl.key.password") is None
    described = {c.name: c for c in describe_broker(MetadataImage.EMPTY, "1", static=config.given_values)}
    assert described["ssl.key.password"].is_sensitive
    assert described["ssl.key.password"].value is None
    assert SECRET not in repr(described)
    assert not described["ssl.keystore.location"].is_sensitive
    with pytest.raises(UsageError) as refused:
        of(BROKER, {"ssl.key.password": [SECRET]})
    assert SECRET not in str(refused.value)
