"""The security of a running node: what it reads from its files, and what a change of a file does."""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import Any

import pytest

from strandline.broker.config import BrokerConfig
from strandline.certificates import make_authority, make_certificate
from strandline.controller.config import ControllerConfig
from strandline.controller.metadata.node_security.node_security import NodeSecurity
from strandline.controller.metadata.node_security.users_file import format_users, parse_users
from strandline.protocol.doors import real_doors
from strandline.protocol.errors import BrokerError, ErrorCode, UsageError
from strandline.protocol.security.mechanisms import SCRAM_256, SCRAM_512
from strandline.protocol.security.scram import ScramClientExchange, new_credential
from strandline.protocol.security.tls import client_context
from strandline.storage.files import RealFiles

PASSWORD = "open sesame"
LISTENERS = ("INTERNAL", "EXTERNAL", "SASL_SSL")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, a node's certificate, and a file of users."""
    folder = tmp_path_factory.mktemp("security")
    make_authority(folder, "test")
    make_certificate(folder, "broker-1", ["localhost"])
    (folder / "users.toml").write_text(format_users({("alice", SCRAM_512): new_credential(SCRAM_512, PASSWORD, os.urandom)}))
    (folder / "password").write_text(PASSWORD + "\n")
    return folder


def keys(folder: Path, **more: Any) -> dict[str, Any]:
    return {
        "node.id": 1,
        "log.dirs": "d",
        "controller.quorum.voters": "101@c:9093",
        "listeners": "SASL_SSL://127.0.0.1:0",
        "ssl.keystore.location": str(folder / "broker-1.pem"),
        "ssl.truststore.location": str(folder / "ca.pem"),
        "sasl.enabled.mechanisms": "SCRAM-SHA-512,SCRAM-SHA-256,PLAIN",
        "sasl.scram.users.file": str(folder / "users.toml"),
        "sasl.node.username": "alice",
        "sasl.node.password.file": str(folder / "password"),
        **{name.replace("__", "."): value for name, value in more.items()},
    }


def security(mapping: dict[str, Any]) -> NodeSecurity:
    return NodeSecurity(BrokerConfig.from_mapping(mapping).security, RealFiles(), real_doors())


def login(node: NodeSecurity, user: str, password: str, mechanism: str = SCRAM_512) -> str | None:
    """The principal that the listener accepts the client as. Raises AuthenticationError if it rejects the client."""
    listener = node.listener("SASL_SSL")
    assert listener is not None
    server, client = listener.mechanisms[mechanism](), ScramClientExchange(mechanism, user, password, os.urandom)
    message = b""
    for _ in range(2):
        message = server.respond(client.respond(message))  # type: ignore[assignment]
    return server.user


def test_an_open_node_has_no_security(folder: Path) -> None:
    """Its connections are the same objects as before, so nothing on their path changes."""
    node = security({"node.id": 1, "log.dirs": "d", "controller.quorum.voters": "101@c:9093"})
    assert node.listener("PLAINTEXT") is None
    assert not node.has_files


def test_nodes_log_in_to_others_with_their_certificate_and_user(folder: Path) -> None:
    node = security(keys(folder))
    client = node.to_brokers
    assert (client.security_protocol, client.ssl_certfile) == ("SASL_SSL", str(folder / "broker-1.pem"))
    assert (client.sasl_plain_username, client.sasl_plain_password) == ("alice", PASSWORD)
    assert PASSWORD not in repr(client)
    assert node.to_controllers.security_protocol == "PLAINTEXT"


def test_users_of_the_file_log_in_before_there_is_metadata(folder: Path) -> None:
    assert login(security(keys(folder)), "alice", PASSWORD) == "alice"


def test_a_credential_of_the_metadata_counts_first(folder: Path) -> None:
    """So `strandline user passwd` changes the password of a user that the file has, too."""
    node = security(keys(folder))
    node.credentials = lambda: {("alice", 2): new_credential(SCRAM_512, "new", os.urandom)}
    assert login(node, "alice", "new") == "alice"


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("ssl__keystore__location", None, "cannot read the certificate"),
        ("ssl__keystore__location", "nonsense", "it is not a PEM file"),
        ("ssl__truststore__location", None, "cannot read the authorities"),
        ("sasl__scram__users__file", None, "it does not exist"),
        ("sasl__scram__users__file", "[alice]\n", "user alice needs a table with a credential"),
        ("sasl__scram__users__file", "alice = ", "is not valid TOML"),
        ("sasl__scram__users__file", '[a]\nSCRAM-SHA-512 = "salt=x"', "is not of the form"),
        ("sasl__scram__users__file", '[a]\nPLAIN = "x"', "is not a SCRAM mechanism"),
        ("sasl__node__password__file", None, "it does not exist"),
        ("sasl__node__password__file", "\n", "is empty"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(folder: Path, tmp_path: Path, name: str, content: str | None, words: str) -> None:
    path = tmp_path / "file"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UsageError) as refused:
        security(keys(folder, **{name: str(path)}))
    assert words in str(refused.value)
    assert str(path) in str(refused.value)


def test_changed_files_are_noticed_and_used(folder: Path, tmp_path: Path) -> None:
    """A renewed certificate is used for the next connection; the object that listeners hold stays the same."""
    users, pem = tmp_path / "users.toml", tmp_path / "broker-1.pem"
    users.write_bytes((folder / "users.toml").read_bytes())
    pem.write_bytes((folder / "broker-1.pem").read_bytes())
    node = security(keys(folder, sasl__scram__users__file=str(users), ssl__keystore__location=str(pem)))
    listener = node.listener("SASL_SSL")
    assert listener is not None
    assert listener.tls is not None
    context = listener.tls.context
    assert not node.has_changed_files()
    users.write_text(format_users({("bob", SCRAM_512): new_credential(SCRAM_512, PASSWORD, os.urandom)}) + "# longer\n")
    assert node.has_changed_files()
    node.reload()
    assert not node.has_changed_files()
    assert login(node, "bob", PASSWORD) == "bob"
    assert listener.tls.context is not context


def test_files_that_cannot_be_used_change_nothing(folder: Path, tmp_path: Path) -> None:
    """F29: a half-written certificate must not lock clients out."""
    pem = tmp_path / "broker-1.pem"
    pem.write_bytes((folder / "broker-1.pem").read_bytes())
    node = security(keys(folder, ssl__keystore__location=str(pem)))
    listener = node.listener("SASL_SSL")
    assert listener is not None
    assert listener.tls is not None
    context = listener.tls.context
    pem.write_bytes(pem.read_bytes()[:300])
    with pytest.raises(UsageError, match=r"broker-1\.pem: it is not a PEM file, it is incomplete"):
        node.reload()
    assert listener.tls.context is context
    assert login(node, "alice", PASSWORD) == "alice"


def test_a_broken_file_does_not_keep_others_from_being_used(folder: Path, tmp_path: Path) -> None:
    """The certificates of two listeners are renewed by different programs. Clients of one must not be locked out by an expired
    certificate because the file of the other, or the file of users, is half-written."""
    pems = {name: tmp_path / f"{name}.pem" for name in ("INTERNAL", "EXTERNAL")}
    for pem in pems.values():
        pem.write_bytes((folder / "broker-1.pem").read_bytes())
    users = tmp_path / "users.toml"
    users.write_bytes((folder / "users.toml").read_bytes())
    node = security(
        keys(folder, sasl__scram__users__file=str(users))
        | {
            "listeners": "INTERNAL://127.0.0.1:0,EXTERNAL://127.0.0.1:0,SASL_SSL://127.0.0.1:0",
            "listener.security.protocol.map": "INTERNAL:SSL,EXTERNAL:SSL,SASL_SSL:SASL_SSL,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "INTERNAL",
        }
        | {f"listener.name.{name.lower()}.ssl.keystore.location": str(pem) for name, pem in pems.items()}
    )
    before = contexts(node)
    whole = pems["INTERNAL"].read_bytes()
    pems["INTERNAL"].write_bytes(whole[:300])
    users.write_text("alice = ")
    with pytest.raises(UsageError, match=r"users\.toml is not valid TOML.*; cannot use the certificate .*INTERNAL\.pem"):
        node.reload()
    assert [name for name, context in contexts(node).items() if context is before[name]] == ["INTERNAL"]
    assert login(node, "alice", PASSWORD) == "alice"
    assert not node.has_changed_files(), "the broken files are not read every few seconds"
    pems["INTERNAL"].write_bytes(whole)
    assert node.has_changed_files()
    with pytest.raises(UsageError, match="is not valid TOML"):
        node.reload()
    assert contexts(node)["INTERNAL"] is not before["INTERNAL"]


def test_a_file_that_changes_while_the_node_starts_is_read_again(folder: Path, tmp_path: Path) -> None:
    """Otherwise the node would use the old content until the next renewal, by which time a certificate may have expired."""
    users = tmp_path / "users.toml"
    users.write_bytes((folder / "users.toml").read_bytes())

    class Renewing(RealFiles):
        def read(self, path: str) -> bytes:
            content = super().read(path)
            if path == str(users):
                users.write_bytes(content + b"# renewed")
            return content

    config = BrokerConfig.from_mapping(keys(folder, sasl__scram__users__file=str(users)))
    assert NodeSecurity(config.security, Renewing(), real_doors()).has_changed_files()


def contexts(node: NodeSecurity) -> dict[str, ssl.SSLContext]:
    """The TLS context of each listener."""
    tls = {name: listener.tls for name in LISTENERS if (listener := node.listener(name)) is not None}
    return {name: each.context for name, each in tls.items() if each is not None}


def test_a_controller_without_a_user_for_brokers_says_so(folder: Path) -> None:
    """It learns the names of their listeners only when they register."""
    mapping = {
        "node.id": 101,
        "log.dirs": "d",
        "controller.quorum.voters": "101@c:9093",
        "listeners": "CONTROLLER://c:9093",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,CLIENTS:SASL_SSL",
    }
    node = NodeSecurity(ControllerConfig.from_mapping(mapping).security, RealFiles(), real_doors())
    with pytest.raises(BrokerError, match=r"listener CLIENTS: config sasl\.node\.password\.file") as refused:
        node.to_listener("CLIENTS")
    assert refused.value.code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert node.to_listener("PLAINTEXT").security_protocol == "PLAINTEXT"


def test_a_file_of_users_is_read_as_it_was_written() -> None:
    users = {
        (name, mechanism): new_credential(mechanism, PASSWORD, os.urandom)
        for name in ("alice", 'with "quotes"', "ünï.code", "a.b")
        for mechanism in (SCRAM_256, SCRAM_512)
    }
    text = format_users(users)
    assert parse_users(text, "users.toml") == users
    assert PASSWORD not in text


def test_nodes_agree_on_the_salts_of_users_that_do_not_exist(folder: Path) -> None:
    """The salt of a user is the same on all nodes. If that of a user who does not exist were not, two requests would show who
    exists."""

    def first_message(node: NodeSecurity, user: str) -> bytes:
        listener = node.listener("SASL_SSL")
        assert listener is not None
        answer = listener.mechanisms[SCRAM_512]().respond(f"n,,n={user},r=x".encode())
        assert isinstance(answer, bytes)
        return answer.partition(b",")[2]

    first, second = security(keys(folder)), security(keys(folder))
    assert first_message(first, "nobody") == first_message(second, "nobody")
    assert first_message(first, "nobody") != first_message(first, "somebody")


def test_node_that_starts_reads_the_files_itself(folder: Path, tmp_path: Path) -> None:
    """The nodes of a process share the contexts of equal settings: a second node used to start although the file was broken by
    then."""
    authority = tmp_path / "ca.pem"
    authority.write_bytes((folder / "ca.pem").read_bytes())
    to_controllers = {
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "controller.listener.names": "SSL",
        "ssl.truststore.location": str(authority),
    }
    running = security(keys(folder) | to_controllers)
    client_context(running.to_controllers)
    authority.write_text("nonsense")
    with pytest.raises(UsageError, match="it is not a PEM file"):
        security(keys(folder) | to_controllers)


def test_outgoing_connections_use_what_the_start_has_read(folder: Path, tmp_path: Path) -> None:
    """The first connection to another node may be opened hours after the start, while the certificate is half-written. It used to
    fail with an error that callers do not expect: a controller then opened no connection to that voter again."""
    pem = tmp_path / "broker-1.pem"
    pem.write_bytes((folder / "broker-1.pem").read_bytes())
    node = security(keys(folder, ssl__keystore__location=str(pem)))
    pem.write_bytes(pem.read_bytes()[:300])
    first = client_context(node.to_brokers)
    pem.write_bytes((folder / "broker-1.pem").read_bytes())
    assert client_context(node.to_brokers) is not first


@pytest.mark.parametrize(
    "key",
    [
        "ssl.keystore.location",
        "ssl.keystore.key.location",
        "ssl.truststore.location",
        "sasl.scram.users.file",
        "sasl.node.password.file",
    ],
)
@pytest.mark.parametrize("path", ["a\0b", "\ud800"])
def test_path_that_no_file_can_have_is_refused_in_one_sentence(folder: Path, key: str, path: str) -> None:
    with pytest.raises(UsageError, match="is not a path of a file"):
        security(keys(folder, **{key: path}))
