"""The path of a wrong value in a message, in the words of the protocol's page."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from strandline.broker.process.forwarding import open_response
from strandline.protocol import frames
from strandline.protocol.apis import CONSUMER_GROUP_HEARTBEAT, CREATE_TOPICS, METADATA
from strandline.protocol.errors import InternalError, PeerError
from strandline.protocol.field_paths import with_field_names
from strandline.protocol.messages.groups import ConsumerGroupHeartbeatRequest
from strandline.protocol.messages.security import EnvelopeResponse

HEARTBEAT = ["g", "m", 0, None, None, 60_000, None, None, None, [[b"1" * 16, [0, 1]]]]


def heartbeat(place: int, value: object) -> list[Any]:
    return [*HEARTBEAT[:place], value, *HEARTBEAT[place + 1 :]]


def problem(body: object) -> str:
    with pytest.raises(msgspec.ValidationError) as found:
        msgspec.msgpack.decode(msgspec.msgpack.encode(body), type=ConsumerGroupHeartbeatRequest)
    return with_field_names(ConsumerGroupHeartbeatRequest, str(found.value))


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (heartbeat(0, 7), "group_id: Expected `str`, got `int`"),
        (heartbeat(9, [[b"1" * 16, [0, -1]]]), "topic_partitions[0].partitions[1]: Expected `int` >= 0"),
        (heartbeat(9, [[b"1" * 16, [0]], [7, [0]]]), "topic_partitions[1].topic_id: Expected `bytes`, got `int`"),
        ({}, "Expected `array`, got `object`"),
    ],
    ids=["a field", "below an optional list", "a struct in a list", "the whole"],
)
def test_field_of_a_wrong_value_is_named(body: object, text: str) -> None:
    assert problem(body) == text


def test_request_that_cannot_be_decoded_names_its_field() -> None:
    """The developer of a client reads this in the response."""
    frame = msgspec.msgpack.encode([CONSUMER_GROUP_HEARTBEAT, 0, 5, None, heartbeat(2, "zero")])
    with pytest.raises(frames.BadBody, match=r"body\.member_epoch: Expected `int`, got `str`"):
        frames.decode_request(frame)


def test_response_that_cannot_be_decoded_names_its_field() -> None:
    """A client logs this about a broker that answers wrongly."""
    frame = msgspec.msgpack.encode([5, [[[1, "host", "a port"]], None, -1, []]])
    with pytest.raises(PeerError, match=r"malformed response to Metadata: body\.brokers\[0\]\.port: Expected `int`, got `str`"):
        frames.decode_response(METADATA, frame)


def test_response_in_an_envelope_names_its_field() -> None:
    """A broker answers this to the client whose request it forwarded to the controller."""
    body = msgspec.msgpack.encode([[["orders", 1]]])
    with pytest.raises(InternalError, match=r"topics\[0\]\.topic_id: Expected `bytes`, got `int`"):
        open_response(CREATE_TOPICS, EnvelopeResponse(0, None, body))


def test_other_texts_stay_as_they_are() -> None:
    assert with_field_names(ConsumerGroupHeartbeatRequest, "Object missing required field") == "Object missing required field"
