"""Mutations of security: each removes one guard of logins, rights, sessions or quotas.

`mutations.py` imports this file, so that they are in its table.
"""

from __future__ import annotations

from typing import Any

from strandline.broker.fetch.fetch_session import FetchSessionCache
from strandline.broker.quotas import limited_fetch
from strandline.broker.security import producer_owners
from strandline.broker.security.reading import Reading
from strandline.broker.security.session_owners import SessionOwners
from strandline.client.consumer.fetcher import Fetcher
from strandline.controller.metadata.security import rights
from strandline.controller.metadata.security.authorizer import Authorizer, Verdict
from strandline.controller.metadata.security.guards import data
from strandline.controller.metadata.security.guards.common import everyone
from strandline.controller.metadata.security.rights import RIGHTS, ApiRights
from strandline.controller.security import envelope
from strandline.protocol import apis
from strandline.protocol.apis import BROKER, CONTROLLER
from strandline.protocol.frames import decode_request
from strandline.protocol.rpc.sasl_door import SaslDoor
from strandline.protocol.security.sasl_server import SaslSession
from strandline.protocol.security.scram import ScramServerExchange
from strandline.testing.simulation.campaign.mutation import Patch, mutation


def _without_right(*keys: int, role: str) -> list[Patch]:
    """The handlers of these APIs without their guards."""
    changed: dict[int, Any] = {}
    for key in keys:
        text, broker, controller = RIGHTS[key]
        changed[key] = ApiRights(text, everyone, controller) if role == BROKER else ApiRights(text, broker, everyone)
    return [(rights, "RIGHTS", {**RIGHTS, **changed})]


# -- rights -----------------------------------------------------------------------------------------------------------


@mutation("M94", "a fetch as a follower needs no right")
def _follower_fetch() -> list[Patch]:
    return _without_right(apis.FETCH, role=BROKER)


@mutation("M95", "AlterPartition, registrations and heartbeats of brokers need no right")
def _broker_requests() -> list[Patch]:
    return _without_right(apis.ALTER_PARTITION, apis.BROKER_REGISTRATION, apis.BROKER_HEARTBEAT, role=CONTROLLER)


@mutation("M96", "votes and announcements of the quorum need no right")
def _quorum_requests() -> list[Patch]:
    return _without_right(apis.VOTE, apis.BEGIN_QUORUM_EPOCH, apis.END_QUORUM_EPOCH, role=CONTROLLER)


@mutation("M97", "any client may send an Envelope in the name of any other client")
def _envelope() -> list[Patch]:
    return _without_right(apis.ENVELOPE, role=CONTROLLER)


@mutation("M98", "a forwarded request has the rights of the broker, not those of the client")
def _rights_of_the_broker() -> list[Patch]:
    open_envelope = envelope.open_envelope

    def as_the_broker(request: Any) -> Any:
        inner = open_envelope(request)
        inner.principal, inner.client_host = request.principal, request.client_host
        return inner

    return [(envelope, "open_envelope", as_the_broker)]


@mutation("M99", "markers of transactions need no right")
def _markers() -> list[Patch]:
    return _without_right(apis.WRITE_TXN_MARKERS, role=BROKER)


@mutation("M100", "an ALLOW rule overrides a DENY rule")
def _allow_before_deny() -> list[Patch]:
    decide = Authorizer.decide

    def without_denials(self: Authorizer, principal: Any, host: str, operation: int, resource_type: int, name: str) -> Verdict:
        verdict = decide(self, principal, host, operation, resource_type, name)
        return Verdict(True, "mutated") if verdict.acl is not None and not verdict.allowed else verdict

    return [(Authorizer, "decide", without_denials)]


@mutation("M101", "cached decisions stay in use after the rules have changed")
def _stale_decisions() -> list[Patch]:
    change = Authorizer._change

    def keeping(self: Authorizer, ids: Any, acls: Any) -> None:
        cached = dict(self._remembered)
        change(self, ids, acls)
        self._remembered.update(cached)

    return [(Authorizer, "_change", keeping)]


@mutation("M102", "the right to read is checked by Fetch only when a partition enters the session")
def _no_reading() -> list[Patch]:
    return [(Reading, "check", lambda self, topic_id: None)]


@mutation("M103", "only the first partition of a Produce request is checked")
def _first_partition() -> list[Patch]:
    refuse = data.pass_produce

    def first(request: Any, handler: Any, refused: dict[int, Any]) -> Any:
        return refuse(request, handler, {index: row for index, row in refused.items() if index == 0})

    return [(data, "pass_produce", first)]


# -- sessions ---------------------------------------------------------------------------------------------------------


@mutation("M104", "any client that has the id of a fetch session may continue it")
def _sessions_of_all() -> list[Patch]:
    incremental_fetch = FetchSessionCache.incremental_fetch

    def of_anybody(self: FetchSessionCache, request: Any, now: float, principal: Any = None) -> Any:
        named = self.get(request.session_id)
        return incremental_fetch(self, request, now, principal if named is None else named.principal)

    return [(FetchSessionCache, "incremental_fetch", of_anybody)]


@mutation("M105", "any client that has a producer id may write with it")
def _producers_of_all() -> list[Patch]:
    return [(producer_owners, "_refusal", lambda *_: None), (producer_owners, "_is_foreign", lambda *_: False)]


@mutation("M106", "any client that has a member id may act as that member")
def _members_of_all() -> list[Patch]:
    return [(SessionOwners, "_check_member", lambda self, access, group_id, member_id: (group_id, member_id))]


# -- logins -----------------------------------------------------------------------------------------------------------


@mutation("M107", "the proof of a SCRAM client is not compared with the stored key")
def _no_proof() -> list[Patch]:
    respond = ScramServerExchange._respond

    def trusting(self: ScramServerExchange, text: str) -> bytes:
        try:
            return respond(self, text)
        except Exception:
            if not self._is_begun or self._claimed is None or ",p=" not in text:
                raise
            self.user = self._claimed
            return b"v=AAAA"

    return [(ScramServerExchange, "_respond", trusting)]


@mutation("M108", "a connection may log in again as another user")
def _another_principal() -> list[Patch]:
    advance = SaslSession.advance

    def forgetting(self: SaslSession, now: float) -> bool:
        self.principal = None if self._exchange is not None and self._exchange.user is not None else self.principal
        return advance(self, now)

    return [(SaslSession, "advance", forgetting)]


@mutation("M109", "a connection stays open after its authenticated session has ended")
def _endless_session() -> list[Patch]:
    return [(SaslDoor, "_on_expired", lambda self, connection: None)]


@mutation("M110", "requests are handled before the login")
def _before_login() -> list[Patch]:
    def begin(self: SaslDoor, connection: Any, login: Any, loop: Any) -> None:
        connection.restrict({**connection.server.handlers, **self._before}, decode_request, self._security.receive_bytes_max)

    return [(SaslDoor, "_begin", begin)]


@mutation("M111", "a broker keeps using the first credential of a user after the password has changed")
def _old_credential() -> list[Patch]:
    known: dict[str, Any] = {}
    credential_of = ScramServerExchange._credential_of

    def first(self: ScramServerExchange, user: str) -> Any:
        found = credential_of(self, user)
        return known.setdefault(user, found) if self._is_known else found

    return [(ScramServerExchange, "_credential_of", first)]


# -- quotas -----------------------------------------------------------------------------------------------------------


@mutation("M112", "the fetches of followers count against the quota of their user")
def _limited_followers() -> list[Patch]:
    init = limited_fetch.LimitedFetch.__init__

    def for_all(self: Any, quotas: Any, handler: Any, request: Any, session: Any, is_full: bool) -> None:
        was, session.is_follower = session.is_follower, False
        try:
            init(self, quotas, handler, request, session, is_full)
        finally:
            session.is_follower = was

    return [(limited_fetch.LimitedFetch, "__init__", for_all)]


@mutation("M113", "a consumer whose throttle time has ended reads the clock again, which may be slightly behind")
def _asks_the_clock() -> list[Patch]:
    def ask(self: Fetcher, broker: Any, until: float) -> None:
        if broker.throttled_until <= self._loop.time() and not self._closed:
            self._send_main(broker)

    return [(Fetcher, "_on_throttle_ended", ask)]
