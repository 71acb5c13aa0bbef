"""The state machine of an authentication, PLAIN, the bound of unauthenticated connections, and the settings of a listener."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from security_world import alice

from strandline.protocol.errors import ErrorCode, UsageError
from strandline.protocol.rpc.unauthenticated import Unauthenticated
from strandline.protocol.security.listener_security import ListenerSecurity, refuse_plain_without_tls
from strandline.protocol.security.mechanisms import AuthenticationError
from strandline.protocol.security.plain import PlainClientExchange, PlainServerExchange
from strandline.protocol.security.sasl_client import reauthenticate_after_s
from strandline.protocol.security.sasl_server import IllegalSaslState, SaslFailure, SaslSession, SaslState


class Named:
    """A mechanism without proof: the message is the user's name; an empty one asks for another message."""

    def __init__(self, lifetime_ms: int | None = None) -> None:
        self.user, self.lifetime_ms = None, lifetime_ms

    def respond(self, message: bytes) -> bytes:
        if message == b"wrong":
            raise AuthenticationError("it is wrong", "mallory")
        self.user = message.decode() or None
        return b""


def session(max_reauth_ms: int = 0, lifetime_ms: int | None = None) -> SaslSession:
    mechanisms = {"A": lambda: Named(lifetime_ms), "B": lambda: Named(lifetime_ms)}
    return SaslSession(ListenerSecurity(security_protocol="SASL_PLAINTEXT", mechanisms=mechanisms, max_reauth_ms=max_reauth_ms))


def authenticate(one: SaslSession, now: float, user: bytes = b"alice", mechanism: str = "A") -> None:
    one.handshake(mechanism, now)
    one.respond(user)
    assert one.advance(now)


def test_exchange_may_take_several_messages():
    one = session()
    one.handshake("A", 0)
    one.respond(b"")
    assert not one.advance(0)
    one.respond(b"alice")
    assert one.advance(0)
    assert str(one.principal) == "User:alice"
    assert one.state is SaslState.AUTHENTICATED
    assert one.expires_at is None


@pytest.mark.parametrize(
    ("max_reauth_ms", "credential_ms", "lifetime_ms"),
    [(0, None, 0), (5000, None, 5000), (0, 3000, 3000), (5000, 3000, 3000), (2000, 3000, 2000), (0, 0, 1), (5000, -5, 1)],
)
def test_session_ends_with_the_credential_or_the_limit(max_reauth_ms, credential_ms, lifetime_ms):
    """KIP-368: the shorter of the two; 0 would mean that it has no end."""
    one = session(max_reauth_ms, credential_ms)
    authenticate(one, 10.0)
    assert one.session_lifetime_ms == lifetime_ms
    assert one.expires_at == (10.0 + lifetime_ms / 1000 if lifetime_ms else None)


@pytest.mark.parametrize(
    ("mechanism", "user", "reason"), [("B", b"alice", "by B instead of A"), ("A", b"bob", "User:bob instead of")]
)
def test_login_again_keeps_mechanism_and_principal(mechanism, user, reason):
    one = session(5000)
    authenticate(one, 0)
    with pytest.raises(SaslFailure, match=reason):
        authenticate(one, 4, user, mechanism)
    assert one.state is SaslState.FAILED


def test_login_again_renews_the_session():
    one = session(5000)
    authenticate(one, 0)
    authenticate(one, 4)
    assert one.expires_at == 9


def test_failed_session_accepts_nothing():
    one = session()
    one.handshake("A", 0)
    with pytest.raises(SaslFailure) as caught:
        one.respond(b"wrong")
    assert (caught.value.code, caught.value.reason, caught.value.user) == (
        ErrorCode.SASL_AUTHENTICATION_FAILED, "it is wrong", "mallory",
    )  # fmt: skip
    assert "wrong" not in caught.value.message
    for step in (lambda: one.handshake("A", 0), lambda: one.respond(b"alice")):
        with pytest.raises(SaslFailure):
            step()
    assert not one.advance(0)


actions = st.lists(
    st.tuples(st.sampled_from("hr"), st.sampled_from(["A", "B", "C"]), st.sampled_from([b"", b"a", b"b", b"wrong"]))
)


@given(actions, st.sampled_from([0, 3000]))
def test_no_order_of_messages_changes_the_principal(steps, max_reauth_ms):
    """Whatever a client sends, it is not authenticated without a proof, and a connection never changes its principal or
    mechanism."""
    one, seen, now = session(max_reauth_ms), [], 0.0
    for kind, mechanism, message in steps:
        now += 0.7
        try:
            if kind == "h":
                one.handshake(mechanism, now)
            else:
                one.respond(message)
                if one.advance(now):
                    seen.append((one.principal, one.mechanism))
        except (SaslFailure, IllegalSaslState):
            pass
        if one.state is SaslState.FAILED:
            break
    assert len(set(seen)) <= 1
    if not seen:
        assert one.principal is None
        assert one.state is not SaslState.AUTHENTICATED


def test_client_authenticates_again_before_the_session_ends():
    assert reauthenticate_after_s(10_000, 0) == pytest.approx(8.5)
    assert reauthenticate_after_s(10_000, 1) == pytest.approx(9.5)


# -- PLAIN ------------------------------------------------------------------------------------------------------------


def test_plain_accepts_the_password_of_the_user():
    exchange = PlainServerExchange(alice().look_up, b"pepper")
    client = PlainClientExchange("alice", "the secret of alice")
    work = exchange.respond(client.respond(b""))
    assert exchange.user is None
    assert work() == b""
    assert exchange.user == "alice"
    assert client.respond(b"") == b""
    assert client.is_complete


@pytest.mark.parametrize(
    "message", [b"", b"alice", b"\0alice", b"\0alice\0", b"\0\0x", b"a\0b\0c\0d", b"admin\0alice\0x", b"\0\xff\0x", b"\0" * 5000]
)
def test_malformed_plain_message_is_refused(message):
    with pytest.raises(AuthenticationError):
        PlainServerExchange(alice().look_up, b"pepper").respond(message)


@pytest.mark.parametrize(("user", "password"), [("alice", "guessed"), ("bob", "the secret of alice"), ("alice", "\x07")])
def test_wrong_password_fails_after_the_hashing(user, password):
    """An unknown user costs the same work as a wrong password."""
    exchange = PlainServerExchange(alice().look_up, b"pepper")
    work = exchange.respond(f"\0{user}\0{password}".encode())
    with pytest.raises(AuthenticationError, match="does not exist, or the password is wrong"):
        work()
    assert exchange.user is None


# -- limits and settings ----------------------------------------------------------------------------------------------


def test_unauthenticated_connections_are_counted_once_and_by_host():
    bound = Unauthenticated(4)
    assert bound.add(1, "a") is None
    assert bound.add(1, "a") is None
    assert bound.add(2, "a") is None
    assert "of its host" in str(bound.add(3, "a"))
    assert bound.add(4, "b") is None
    assert bound.add(5, "c") is None
    assert "4 connections" in str(bound.add(6, "d"))
    bound.discard(1)
    bound.discard(1)
    assert bound.add(7, "a") is None
    assert len(bound) == 4


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"security_protocol": "TLS"}, "unknown security protocol"),
        ({"security_protocol": "SSL"}, "needs a certificate"),
        ({"security_protocol": "SASL_PLAINTEXT"}, "at least one SASL mechanism"),
    ],
)
def test_incomplete_listener_is_refused(settings, text):
    with pytest.raises(UsageError, match=text):
        ListenerSecurity(**settings)


def test_passwords_do_not_cross_a_network_in_plain_text():
    """F29: SASL/PLAIN without TLS is for loopback only."""
    with pytest.raises(UsageError, match="passwords would cross the network"):
        refuse_plain_without_tls("SASL_PLAINTEXT", ["PLAIN"], "CLIENTS", "0.0.0.0")
    refuse_plain_without_tls("SASL_PLAINTEXT", ["PLAIN"], "CLIENTS", "127.0.0.1")
    refuse_plain_without_tls("SASL_PLAINTEXT", ["SCRAM-SHA-512"], "CLIENTS", "0.0.0.0")
    refuse_plain_without_tls("SASL_SSL", ["PLAIN"], "CLIENTS", "0.0.0.0")


@pytest.mark.parametrize("lifetime_ms", [2, 400, 1000, 1170])
@pytest.mark.parametrize("chance", [0.0, 1.0])
def test_client_of_a_short_session_may_log_in_again_before_its_end(lifetime_ms, chance):
    """A limit of a second between two logins would end every connection whose session is that short, again and again."""
    one = session(max_reauth_ms=lifetime_ms)
    authenticate(one, 10.0)
    authenticate(one, 10.0 + reauthenticate_after_s(one.session_lifetime_ms, chance))
