"""SCRAM: the examples of the RFCs, the attacks of reliability.md F28, and other implementations."""

from __future__ import annotations

import base64
import hmac
import os
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from security_world import SCRAMS

from strandline.client.admin import users as users_of_metadata
from strandline.controller.metadata.node_security.users_file import parse_users
from strandline.protocol.errors import UsageError
from strandline.protocol.security import scram
from strandline.protocol.security.mechanisms import AuthenticationError
from strandline.protocol.security.scram import (
    ScramClientExchange,
    ScramCredential,
    ScramServerExchange,
    check_name,
    credential_of,
    is_password_of,
    made_up_credential,
    new_credential,
    salted_password,
    scram_server,
)
from strandline.static_users import add_user

PEPPER = b"pepper"
passwords = st.text(st.characters(exclude_categories=("C", "Z", "M")), min_size=1, max_size=20)
names = st.text(st.sampled_from("abcz,=äß,=é0"), min_size=1, max_size=12)


def server(credential: ScramCredential | None, mechanism: str = "SCRAM-SHA-256", nonce: str | None = None) -> ScramServerExchange:
    exchange = ScramServerExchange(mechanism, lambda user, name: credential, os.urandom, PEPPER)
    if nonce is not None:
        use_nonce(exchange, nonce)
    return exchange


def use_nonce(exchange: ScramServerExchange, nonce: str) -> None:
    """Set the server's nonce, because those in the RFCs are no hexadecimal digits."""
    exchange._nonce = nonce
    exchange._core.s_nonce = type(exchange._core.s_nonce)(nonce)


def run(client: ScramClientExchange, exchange: ScramServerExchange) -> None:
    message = b""
    while not client.is_complete:
        message = client.respond(message)
        if not client.is_complete:
            message = exchange.respond(message)


# -- examples ---------------------------------------------------------------------------------------------------------

RFC_7677 = (
    "SCRAM-SHA-256",
    b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO",
    b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
    b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
)


def test_server_follows_the_example_of_rfc_7677():
    mechanism, client_first, server_first, client_final, server_final = RFC_7677
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    credential = credential_of(mechanism, salted_password(mechanism, "pencil", salt, 4096), salt, 4096)
    exchange = server(credential, mechanism, "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    assert exchange.respond(client_first) == server_first
    assert exchange.user is None
    assert exchange.respond(client_final) == server_final
    assert exchange.user == "user"


def test_client_follows_the_example_of_rfc_7677():
    mechanism, client_first, server_first, client_final, server_final = RFC_7677
    client = ScramClientExchange(mechanism, "user", "pencil", os.urandom)
    client._core.c_nonce = type(client._core.c_nonce)("rOprNGfwEbeRWgbNEkqO")
    assert client.respond(b"") == client_first
    assert client.respond(server_first) == client_final
    assert not client.is_complete
    assert client.respond(server_final) == b""
    assert client.is_complete


@pytest.mark.parametrize("mechanism", SCRAMS)
def test_credential_is_that_of_scramp(mechanism):
    """The keys are derived twice: by our code, and by the library."""
    from scramp import ScramMechanism

    salt = bytes(range(24))
    _, stored_key, server_key, _ = ScramMechanism(mechanism).make_auth_info("pässwörd", 4096, salt)
    ours = credential_of(mechanism, salted_password(mechanism, "pässwörd", salt, 4096), salt, 4096)
    assert (ours.stored_key, ours.server_key) == (stored_key, server_key)


@pytest.mark.parametrize("mechanism", SCRAMS)
def test_client_of_aiokafka_can_log_in(mechanism):
    """Its SCRAM client is an implementation of its own."""
    from aiokafka.conn import ScramAuthenticator

    class Loop:
        async def run(self, function, *args):
            return function(*args)

    client = ScramAuthenticator(loop=None, sasl_plain_password="pencil", sasl_plain_username="user", sasl_mechanism=mechanism)
    exchange = server(new_credential(mechanism, "pencil", os.urandom), mechanism)
    first = client.first_message().encode()
    client.process_server_first_message(exchange.respond(first).decode())
    client.process_server_final_message(exchange.respond(client.final_message().encode()).decode())
    assert exchange.user == "user"


@settings(max_examples=40)
@given(user=names, password=passwords, mechanism=st.sampled_from(SCRAMS))
def test_both_ends_agree_for_every_name_and_password(user, password, mechanism):
    """Names with commas and equals signs are escaped (`=2C`, `=3D`); passwords are prepared by both ends alike."""
    seen = []
    try:
        credential = new_credential(mechanism, password, Random(1).randbytes)
        client = ScramClientExchange(mechanism, user, password, Random(2).randbytes)
    except UsageError:
        return
    exchange = ScramServerExchange(mechanism, lambda name, _: seen.append(name) or credential, Random(3).randbytes, PEPPER)
    run(client, exchange)
    assert exchange.user == seen[0]
    assert is_password_of(mechanism, password, credential)


@settings(max_examples=20)
@given(password=passwords, other=passwords)
def test_another_password_fails(password, other):
    try:
        credential = new_credential("SCRAM-SHA-256", password, os.urandom)
        client = ScramClientExchange("SCRAM-SHA-256", "alice", other, os.urandom)
    except UsageError:
        return
    exchange = server(credential)
    if scram.prepared_password(password) == scram.prepared_password(other):
        return
    with pytest.raises(AuthenticationError):
        run(client, exchange)
    assert exchange.user is None
    assert not client.is_complete


def test_password_is_prepared():
    """SASLprep removes a soft hyphen, replaces a ligature by its letters, and refuses a control character."""
    assert scram.prepared_password("I\u00adX") == b"IX"
    assert scram.prepared_password("\u2168") == b"IX"
    with pytest.raises(UsageError, match="SASLprep"):
        scram.prepared_password("a\u0007")
    with pytest.raises(UsageError, match="empty"):
        scram.prepared_password("\u00ad")


# -- attacks ----------------------------------------------------------------------------------------------------------


def begun(credential: ScramCredential | None = None) -> tuple[ScramClientExchange, ScramServerExchange, bytes]:
    """Both ends just before the client's final message, and that message."""
    known = credential or new_credential("SCRAM-SHA-256", "secret", os.urandom)
    client, exchange = ScramClientExchange("SCRAM-SHA-256", "alice", "secret", os.urandom), server(known)
    return client, exchange, client.respond(exchange.respond(client.respond(b"")))


def test_final_message_needs_the_nonce_of_this_exchange():
    """CVE-2024-56128: Kafka did not compare the nonce."""
    _, exchange, final = begun()
    nonce = final.split(b",")[1]
    with pytest.raises(AuthenticationError, match="nonce"):
        exchange.respond(final.replace(nonce, nonce[:-1] + (b"0" if nonce[-1:] != b"0" else b"1")))
    assert exchange.user is None


def test_replayed_exchange_is_refused():
    """The server has chosen a new nonce."""
    credential = new_credential("SCRAM-SHA-256", "secret", os.urandom)
    client, exchange = ScramClientExchange("SCRAM-SHA-256", "alice", "secret", os.urandom), server(credential)
    first = client.respond(b"")
    final = client.respond(exchange.respond(first))
    exchange.respond(final)
    replayed = server(credential)
    replayed.respond(first)
    with pytest.raises(AuthenticationError, match="nonce"):
        replayed.respond(final)


def test_exchange_cannot_go_on_after_its_end():
    _, exchange, final = begun()
    exchange.respond(final)
    with pytest.raises(AuthenticationError):
        exchange.respond(final)


def final_of(user_nonce: str, nonce: str, bare: str, server_first: bytes, credential_password: str, salt: bytes) -> bytes:
    """The final message of a client that names `nonce`, with the right proof for it."""
    name = "sha256"
    salted = salted_password("SCRAM-SHA-256", credential_password, salt, 4096)
    client_key = hmac.digest(salted, b"Client Key", name)
    stored_key = credential_of("SCRAM-SHA-256", salted, salt, 4096).stored_key
    unproved = f"c=biws,r={nonce}"
    signature = hmac.digest(stored_key, f"{bare},{server_first.decode()},{unproved}".encode(), name)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    return f"{unproved},p={base64.b64encode(proof).decode()}".encode()


@pytest.mark.parametrize(("prefix", "is_accepted"), [("mine", True), ("", True), ("other", False), ("minemine", False)])
def test_nonce_repeated_as_by_old_librdkafka_is_accepted(prefix, is_accepted):
    """librdkafka before 2.6.1 puts its own nonce before the whole one (librdkafka#4895). Nothing else may stand there."""
    credential = new_credential("SCRAM-SHA-256", "secret", os.urandom)
    exchange = server(credential)
    server_first = exchange.respond(b"n,,n=alice,r=mine")
    nonce = prefix + server_first.split(b",")[0][2:].decode()
    final = final_of("mine", nonce, "n=alice,r=mine", server_first, "secret", credential.salt)
    if is_accepted:
        exchange.respond(final)
        assert exchange.user == "alice"
    else:
        with pytest.raises(AuthenticationError, match="nonce"):
            exchange.respond(final)


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (b"p=tls-unique,,n=alice,r=x", "requires channel binding"),
        (b"n,a=admin,n=alice,r=x", "authzid"),
        (b"x,,n=alice,r=x", "GS2 flag"),
        (b"n,,m=ext,n=alice,r=x", "'m' attribute"),
        (b"n,,n=al=ice,r=x", "username"),
        (b"n,,n=alice", "Malformed"),
        (b"n,,n=alice,r=", "at least one character"),
        (b"n,,r=x,n=alice", "Malformed"),
        (b"\xff\xfe", "UTF-8"),
        (b"n,,n=alice,r=" + b"x" * 5000, "at most 4096"),
        (b"", "malformed"),
    ],
)
def test_first_message_that_breaks_the_rules_is_refused(first, reason):
    with pytest.raises(AuthenticationError, match=reason):
        server(new_credential("SCRAM-SHA-256", "secret", os.urandom)).respond(first)


def test_channel_binding_flag_of_the_first_message_is_confirmed_by_the_final_one():
    """`y` ("the server offers no channel binding") that an attacker changed to `n` on the way would fail here."""
    _, exchange, final = begun()
    with pytest.raises(AuthenticationError, match="channel bindings"):
        exchange.respond(final.replace(b"c=biws", b"c=eSws"))


# -- unknown users ----------------------------------------------------------------------------------------------------


def test_unknown_user_is_not_told_from_a_known_one():
    """The server's first message has the same form, and the same salt each time; the error is sent after the final message."""
    make = scram_server("SCRAM-SHA-256", lambda user, _: None, os.urandom, PEPPER)
    salts = []
    for _ in range(2):
        exchange, client = make(), ScramClientExchange("SCRAM-SHA-256", "alice", "secret", os.urandom)
        first = exchange.respond(client.respond(b""))
        salts.append(first.split(b",")[1:])
        with pytest.raises(AuthenticationError) as caught:
            exchange.respond(client.respond(first))
        assert caught.value.user == "alice"
    assert salts[0] == salts[1]
    made = new_credential("SCRAM-SHA-256", "secret", os.urandom, scram.ITERATIONS_USUAL)
    known = server(made).respond(b"n,,n=alice,r=x").split(b",")[1:]
    assert [len(part) for part in known] == [len(part) for part in salts[0]]
    assert known[1] == salts[0][1]


def test_users_that_our_tools_make_have_the_iterations_of_unknown_ones(tmp_path):
    """Otherwise the server's first message would tell them apart."""
    add_user(tmp_path, "alice")
    users = parse_users((tmp_path / "users.toml").read_text(), "users.toml")
    assert {credential.iterations for credential in users.values()} == {users_of_metadata.ITERATIONS}
    assert made_up_credential("SCRAM-SHA-512", "bob", PEPPER).iterations == users_of_metadata.ITERATIONS


def test_made_up_credentials_depend_on_the_user_the_mechanism_and_the_secret():
    made = {
        made_up_credential(mechanism, user, pepper).salt
        for mechanism in SCRAMS
        for user in ("alice", "bob")
        for pepper in (b"a", b"b")
    }
    assert len(made) == 8


# -- the client protects itself ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("iterations", ["1", "4095", str(scram.ITERATIONS_MAX + 1), "1" + "0" * 3000])
def test_client_refuses_too_few_and_too_many_iterations(iterations):
    """Few would help an attacker to guess the password from the proof; many would keep the client busy."""
    client = ScramClientExchange("SCRAM-SHA-256", "alice", "secret", os.urandom)
    nonce = client.respond(b"").split(b"r=")[1]
    with pytest.raises(AuthenticationError):
        client.respond(b"r=" + nonce + b"more,s=" + base64.b64encode(bytes(24)) + b",i=" + iterations.encode())


@pytest.mark.parametrize("change", ["short", "other"])
def test_client_needs_its_own_nonce_and_more(change):
    client = ScramClientExchange("SCRAM-SHA-256", "alice", "secret", os.urandom)
    nonce = client.respond(b"").split(b"r=")[1]
    claimed = nonce if change == "short" else b"other" + nonce
    with pytest.raises(AuthenticationError, match="nonce"):
        client.respond(b"r=" + claimed + b",s=" + base64.b64encode(bytes(24)) + b",i=4096")


def test_secrets_are_in_no_repr():
    """F33."""
    credential = new_credential("SCRAM-SHA-256", "secret", os.urandom)
    assert repr(credential) == "ScramCredential(iterations=4096)"
    assert "secret" not in repr(ScramClientExchange("SCRAM-SHA-256", "alice", "secret", os.urandom))


@settings(max_examples=300)
@given(st.lists(st.binary(max_size=60) | st.text("n,=rcpy" + "biws0").map(str.encode), min_size=1, max_size=3))
def test_random_messages_raise_one_error_only(messages):
    exchange = server(new_credential("SCRAM-SHA-256", "secret", os.urandom))
    for message in messages:
        try:
            exchange.respond(message)
        except AuthenticationError:
            pass
        assert exchange.user is None


# -- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text"), [("\uff21lice", "write 'Alice' instead"), ("a\x07", "SASLprep does not allow"), ("\xad", "nothing is left")]
)
def test_name_that_sasl_would_change_is_refused(name: str, text: str):
    """A user of this name could never log in: the server looks for the prepared name."""
    with pytest.raises(UsageError, match=text):
        check_name(name)


@given(names)
def test_name_that_is_accepted_can_log_in(name: str):
    try:
        check_name(name)
    except UsageError:
        return
    exchange = server(new_credential("SCRAM-SHA-256", "tea", os.urandom))
    run(ScramClientExchange("SCRAM-SHA-256", name, "tea", os.urandom), exchange)
    assert exchange.user == name


def test_user_of_a_file_is_refused_by_the_same_rule(tmp_path):
    with pytest.raises(UsageError, match="'Alice'"):
        add_user(tmp_path, "\uff21lice")
    assert list(tmp_path.iterdir()) == []
