"""A client of Strandline at a listener for Kafka's clients: the error that it gets names the address of Strandline's listener.

The first byte of its frames is that of a msgpack array. No API key of Kafka's begins with this byte.
"""

from __future__ import annotations

from strandline.protocol import frames
from strandline.protocol.errors import ErrorCode, PeerError
from strandline.protocol.frames import Buffer

_ARRAY_OF_5 = 0x95


def speaks_strandline(frame: Buffer) -> bool:
    """Whether a frame that is no request of Kafka's is one of Strandline's."""
    return len(frame) >= 5 and frame[0] == _ARRAY_OF_5 and frame[1] < 0x80


def refusal(frame: Buffer, address: str) -> list[Buffer]:
    """The answer to a frame of Strandline's protocol, in that protocol. `address`: that of the broker's listener for it."""
    text = f"this port speaks Kafka's protocol; Strandline's is spoken at {address}"
    try:
        correlation_id = frames.decode_head(frame).correlation_id
    except PeerError:
        return []
    return frames.encode_refusal(correlation_id, ErrorCode.INVALID_REQUEST, text)
