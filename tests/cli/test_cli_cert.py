"""`strandline cert`: what it makes can be used, is readable by its owner only, and is never overwritten by accident."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from cli_world import run

from strandline.protocol.security.client_security import ClientSecurity


def made(*words: str, folder: Path) -> str:
    outcome = run("cert", *words, "--dir", str(folder))
    assert outcome.code == 0, outcome.err
    return outcome.err


def refused(*words: str, folder: Path) -> str:
    outcome = run("cert", *words, "--dir", str(folder))
    assert outcome.code == 2, outcome.err
    assert len(outcome.err.splitlines()) == 1
    return outcome.err


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certs") / "new"
    made("ca", folder=folder)
    made("node", "broker-1", "--host", "broker-1.example.com", "--host", "127.0.0.1", folder=folder)
    made("user", "alice", folder=folder)
    made("password", "broker-1", folder=folder)
    return folder


def shaken(folder: Path, *, server: str, client: str | None, host: str) -> str | None:
    """The common name of the client that the server of a TLS handshake sees. Raises ssl.SSLError if the handshake fails."""
    at_server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    at_server.load_cert_chain(folder / f"{server}.pem")
    at_server.load_verify_locations(folder / "ca.pem")
    at_server.verify_mode = ssl.CERT_REQUIRED if client else ssl.CERT_NONE
    at_client = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    if client:
        at_client.load_cert_chain(folder / f"{client}.pem")
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        at_client.wrap_bio(to_client, to_server, server_hostname=host),
        at_server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                pass
    found = ends[1].getpeercert()
    return None if not found else dict(pair for part in found["subject"] for pair in part)["commonName"]  # type: ignore[misc, union-attr]


@pytest.mark.parametrize("host", ["broker-1.example.com", "127.0.0.1"])
def test_nodes_and_users_know_each_other_by_their_certificates(folder: Path, host: str) -> None:
    assert shaken(folder, server="broker-1", client="alice", host=host) == "alice"
    assert shaken(folder, server="broker-1", client="broker-1", host=host) == "broker-1"


def test_a_certificate_serves_its_hosts_only(folder: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        shaken(folder, server="broker-1", client=None, host="other.example.com")


def test_a_user_cannot_pose_as_a_node(folder: Path) -> None:
    """Its certificate is for clients only, and names no host."""
    with pytest.raises(ssl.SSLCertVerificationError):
        shaken(folder, server="alice", client=None, host="127.0.0.1")


def test_files_with_secrets_are_for_their_owner(folder: Path) -> None:
    for name in ("ca.key", "broker-1.pem", "alice.pem", "broker-1.password", "users.toml"):
        assert (folder / name).stat().st_mode & 0o777 == 0o600, name
    assert (folder / "ca.pem").stat().st_mode & 0o777 == 0o644


def test_the_properties_of_a_user_are_for_clients(folder: Path) -> None:
    security = ClientSecurity.from_file(str(folder / "alice.properties"))
    assert (security.security_protocol, security.ssl_certfile) == ("SSL", str(folder / "alice.pem"))
    assert security.ssl_cafile == str(folder / "ca.pem")


def test_nothing_is_overwritten(folder: Path) -> None:
    before = {path: path.read_bytes() for path in folder.iterdir()}
    assert "exists already" in refused("ca", folder=folder)
    assert "`strandline cert renew` replaces it" in refused("node", "broker-1", "--host", "h", folder=folder)
    assert "exists already" in refused("user", "alice", folder=folder)
    assert "exists already" in refused("password", "broker-1", folder=folder)
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_a_renewed_certificate_keeps_its_name_and_hosts(folder: Path) -> None:
    before = (folder / "broker-1.pem").read_bytes()
    assert "broker-1.pem, which is valid until" in made("renew", "broker-1", "--days", "10", folder=folder)
    assert (folder / "broker-1.pem").read_bytes() != before
    found = {c["name"]: c for c in run("cert", "list", "--dir", str(folder), "-o", "json").json()["certificates"]}
    assert found["broker-1"]["hosts"] == ["broker-1.example.com", "127.0.0.1"]
    assert found["broker-1"]["days_left"] == 9
    assert {name: c["kind"] for name, c in found.items()} == {"strandline": "authority", "broker-1": "node", "alice": "user"}
    assert "cert renew broker-1" in run("cert", "list", "--dir", str(folder)).err
    assert shaken(folder, server="broker-1", client="alice", host="127.0.0.1") == "alice"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["node", "../x", "--host", "h"], "cannot be the name of a certificate"),
        (["user", "ca"], "is that of the authority"),
        (["user", "x" * 65], "at most 64 characters"),
        (["node", "b", "--host", "bü"], "is no host name for a certificate"),
        (["node", "b", "--host", ""], "is no host name for a certificate"),
        (["node", "b", "--host", "a b"], "is no host name for a certificate"),
        (["node", "b", "--host", "10.0.0.0/8"], "is no host name for a certificate"),
        (["renew", "nobody"], "No such file"),
    ],
)
def test_a_mistake_is_one_sentence(folder: Path, words: list[str], reason: str) -> None:
    assert reason in refused(*words, folder=folder)


def test_without_an_authority_there_is_no_certificate(tmp_path: Path) -> None:
    assert "`strandline cert ca` creates one" in refused("user", "alice", folder=tmp_path)


def test_an_authority_needs_a_name_that_can_be_shown(tmp_path: Path) -> None:
    for name in ("", "a\nb"):
        assert "cannot be the name of an authority" in refused("ca", "--name", name, folder=tmp_path)
    assert not list(tmp_path.iterdir())
