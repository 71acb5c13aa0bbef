"""The client's side of SASL: the exchange for the settings, and when to authenticate again (KIP-368)."""

from __future__ import annotations

from strandline.protocol.errors import UsageError
from strandline.protocol.security.client_security import ClientSecurity
from strandline.protocol.security.mechanisms import MECHANISMS, OAUTHBEARER, PLAIN, ClientExchange

REAUTH_PART_MIN, REAUTH_PART_MAX = 0.85, 0.95
"""The client authenticates again after this part of the session's lifetime, as in Kafka: early enough, and not all at once."""


async def new_client_exchange(security: ClientSecurity) -> ClientExchange:
    """The exchange of one authentication. Raises UsageError if a setting is missing."""
    mechanism = security.sasl_mechanism
    if mechanism == OAUTHBEARER:
        return await _bearer_exchange(security)
    if mechanism not in MECHANISMS:
        raise UsageError(f"unknown sasl_mechanism {mechanism!r}: the mechanisms are {', '.join(MECHANISMS)}")
    user, password = security.sasl_plain_username, security.sasl_plain_password
    if not user or not password:
        raise UsageError(f"sasl_mechanism {mechanism} needs sasl_plain_username and sasl_plain_password")
    if mechanism == PLAIN:
        from strandline.protocol.security.plain import PlainClientExchange

        return PlainClientExchange(user, password)
    from strandline.protocol.security.scram import ScramClientExchange

    return ScramClientExchange(mechanism, user, password, security.random_bytes)


async def _bearer_exchange(security: ClientSecurity) -> ClientExchange:
    from strandline.protocol.security.oauthbearer import BearerClientExchange

    if security.sasl_oauth_token_provider is None:
        raise UsageError("sasl_mechanism OAUTHBEARER needs sasl_oauth_token_provider")
    return BearerClientExchange(await security.sasl_oauth_token_provider())


def reauthenticate_after_s(session_lifetime_ms: int, chance: float) -> float:
    """Seconds until the client should authenticate again. `chance`: between 0 and 1."""
    return session_lifetime_ms / 1000 * (REAUTH_PART_MIN + (REAUTH_PART_MAX - REAUTH_PART_MIN) * chance)
