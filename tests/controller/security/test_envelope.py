"""Envelope: a broker forwards a request with its client's identity, and the client's rights count."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from guarded_world import ALICE, BOB, NODE, GuardedWorld, PeerRequest, cluster, topic

from strandline.broker.process.forwarding import Forwarder, envelope_of, open_response
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.persistent_map import PersistentMap
from strandline.controller.metadata.security.rights import FORWARDABLE
from strandline.controller.security.authorization import authorized
from strandline.protocol import apis
from strandline.protocol.apis import CONTROLLER
from strandline.protocol.errors import BrokerError
from strandline.protocol.errors import ErrorCode as E
from strandline.protocol.messages import admin
from strandline.protocol.messages import security as s
from strandline.protocol.messages.common import Message
from strandline.protocol.messages.security import EnvelopeRequest, EnvelopeResponse
from strandline.protocol.security.principal import Principal

CREATION = admin.CreateTopicsRequest([admin.CreatableTopic("orders"), admin.CreatableTopic("secret")])


def create(request: Any) -> None:
    request.reply(admin.CreateTopicsResponse([admin.CreatableTopicResult(t.name) for t in request.body.topics]))


class Controller:
    """The handlers of a controller with an authorizer, and requests to them."""

    def __init__(self, world: GuardedWorld, handler: Any = create) -> None:
        self.world = world
        self.reached: list[Any] = []

        def handle(request: Any) -> None:
            self.reached.append(request)
            handler(request)

        handlers = {apis.CREATE_TOPICS: handle, apis.DESCRIBE_QUORUM: handle}
        authorizer: Any = world.authorizer
        image: Any = lambda: world.image  # noqa: E731
        self.handlers = authorized(handlers, authorizer, image, lambda key: self.handlers.get(key))

    def send(self, envelope: EnvelopeRequest, principal: Principal = NODE) -> Any:
        request = PeerRequest(envelope, apis.ENVELOPE, principal)
        try:
            self.handlers[apis.ENVELOPE](request)
        except BrokerError as e:
            return e.code
        return request.answer


def forwarded(principal: Principal = ALICE, body: Message = CREATION, key: int = apis.CREATE_TOPICS) -> EnvelopeRequest:
    return envelope_of(PeerRequest(body, key, principal))  # type: ignore[arg-type]


@pytest.fixture
def controller() -> Controller:
    return Controller(GuardedWorld(topic(s.CREATE), role=CONTROLLER))


def test_rights_of_the_client_count_and_not_those_of_the_broker(controller: Controller) -> None:
    """The broker itself could create every topic."""
    controller.world.grant(topic(s.CREATE), cluster(s.CLUSTER_ACTION, NODE), cluster(s.CREATE, NODE))
    response: Any = open_response(apis.CREATE_TOPICS, controller.send(forwarded()))
    assert [(row.name, row.error_code) for row in response.topics] == [("orders", 0), ("secret", E.TOPIC_AUTHORIZATION_FAILED)]
    (reached,) = controller.reached
    assert [t.name for t in reached.body.topics] == ["orders"]
    assert (reached.principal, reached.client_host, reached.client_id) == (ALICE, "10.0.0.1", "test")


def test_only_a_node_may_speak_for_others(controller: Controller) -> None:
    """Otherwise every client could act as the administrator."""
    assert controller.send(forwarded(Principal("User", "admin")), principal=ALICE) == E.CLUSTER_AUTHORIZATION_FAILED
    assert not controller.reached


def test_whole_refusal_of_the_client_is_an_error_of_the_request(controller: Controller) -> None:
    answer = controller.send(forwarded(body=admin.UnregisterBrokerRequest(1), key=apis.DESCRIBE_QUORUM, principal=BOB))
    assert answer == E.CLUSTER_AUTHORIZATION_FAILED


@pytest.mark.parametrize("key", [apis.ENVELOPE, apis.BROKER_HEARTBEAT, apis.VOTE, apis.FETCH, apis.PRODUCE, 999])
def test_requests_of_nodes_are_not_forwarded(controller: Controller, key: int) -> None:
    """An envelope in an envelope is not accepted either."""
    envelope = EnvelopeRequest(str(ALICE), "10.0.0.1", None, key, 0, b"\x90")
    assert controller.send(envelope) == E.INVALID_REQUEST
    assert key not in FORWARDABLE


def test_malformed_envelopes_are_refused(controller: Controller) -> None:
    good = forwarded()
    for change, code in [
        ({"principal": "alice"}, E.INVALID_REQUEST),
        ({"body": b"\xff"}, E.INVALID_REQUEST),
        ({"body": msgspec.msgpack.encode([1])}, E.INVALID_REQUEST),
        ({"api_version": 99}, E.UNSUPPORTED_VERSION),
    ]:
        assert controller.send(msgspec.structs.replace(good, **change)) == code
    assert not controller.reached


def test_standby_controller_is_told_apart_from_an_answer() -> None:
    """The broker's channel looks for NOT_CONTROLLER in the response, and sends the request to the active controller."""
    for handler in (
        lambda request: request.refuse(E.NOT_CONTROLLER, "node 2 is"),
        lambda request: request.reply(admin.UnregisterBrokerResponse(E.NOT_CONTROLLER, "node 2 is")),
    ):
        controller = Controller(GuardedWorld(topic(s.CREATE, "*"), role=CONTROLLER), handler)
        answer = controller.send(forwarded())
        assert (answer.error_code, answer.error_message) == (E.NOT_CONTROLLER, "node 2 is")


def test_throttled_client_does_not_mute_the_broker(controller: Controller) -> None:
    """All forwarded requests of a broker share its connection."""
    muted: list[float] = []

    def handle(request: Any) -> None:
        request.connection.mute(5.0)
        assert request.connection.id == 1
        create(request)

    controller = Controller(GuardedWorld(topic(s.CREATE, "*"), role=CONTROLLER), handle)
    request = PeerRequest(forwarded(), apis.ENVELOPE, NODE)
    request.connection.mute = muted.append  # type: ignore[attr-defined]
    controller.handlers[apis.ENVELOPE](request)
    assert request.answer.error_code == 0
    assert not muted


def test_controller_without_an_authorizer_refuses_envelopes() -> None:
    """It would carry out for everyone what the broker leaves to the controller to check. The message says what to configure."""
    handlers = authorized({}, None, lambda: None, lambda key: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(BrokerError, match="has an authorizer and this controller has none") as e:
        handlers[apis.ENVELOPE](PeerRequest(forwarded(), apis.ENVELOPE, NODE))
    assert e.value.code == E.SECURITY_DISABLED


def test_secrets_in_an_envelope_are_not_shown() -> None:
    """AlterUserScramCredentials contains a salted password."""
    upsertion = s.ScramCredentialUpsertion("alice", s.SCRAM_SHA_256, 4096, b"salt", b"the-salted-password")
    envelope = forwarded(body=s.AlterUserScramCredentialsRequest([], [upsertion]), key=apis.ALTER_USER_SCRAM_CREDENTIALS)
    assert b"the-salted-password" in envelope.body
    assert "salted" not in repr(envelope)


BLANK = MetadataImage.EMPTY
LIMITED = msgspec.structs.replace(BLANK, client_quotas=PersistentMap({(("user", "bob"),): {"controller_mutation_rate": 1.0}}))


class Channel:
    """Answers each request with `answer`, and keeps the requests."""

    def __init__(self, answer: Message) -> None:
        self.sent: list[tuple[int, Message]] = []
        self._answer = answer

    async def request(self, api_key: int, body: Message, timeout_ms: int, on_lost: Any = None) -> Message:
        self.sent.append((api_key, body))
        return self._answer


async def test_broker_forwards_in_envelopes_with_an_authorizer_or_a_quota() -> None:
    response = admin.CreateTopicsResponse([admin.CreatableTopicResult("orders")])
    request: Any = PeerRequest(CREATION, apis.CREATE_TOPICS, ALICE)
    plain = Channel(response)
    assert await Forwarder(plain, lambda: BLANK, has_authorizer=False).forward(request, 100) == response
    assert plain.sent == [(apis.CREATE_TOPICS, CREATION)]
    limited, enveloped = Channel(EnvelopeResponse(0, None, msgspec.msgpack.encode(response))), envelope_of(request, False)
    assert await Forwarder(limited, lambda: LIMITED, has_authorizer=False).forward(request, 100) == response
    assert limited.sent == [(apis.ENVELOPE, enveloped)]
    channel = Channel(EnvelopeResponse(0, None, msgspec.msgpack.encode(response)))
    assert await Forwarder(channel, lambda: BLANK, has_authorizer=True).forward(request, 100) == response
    assert channel.sent == [(apis.ENVELOPE, envelope_of(request))]
    refusing = Channel(EnvelopeResponse(E.CLUSTER_AUTHORIZATION_FAILED, "no"))
    with pytest.raises(BrokerError, match="no") as e:
        await Forwarder(refusing, lambda: BLANK, has_authorizer=True).forward(request, 100)
    assert e.value.code == E.CLUSTER_AUTHORIZATION_FAILED
