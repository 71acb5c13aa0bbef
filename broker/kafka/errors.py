"""Our error codes, as Kafka's clients see them: a code that Kafka does not have is replaced by one of Kafka's."""

from __future__ import annotations

from strandline.protocol.errors import ErrorCode

KAFKA_CODES: dict[int, ErrorCode] = {
    # Kafka's clients look for the leader again, and find one that is not fenced.
    ErrorCode.FENCED_BROKER: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    # Kafka's clients cannot ask for conditional appends. Their records meet these codes only by mistake.
    ErrorCode.UNEXPECTED_LOG_END: ErrorCode.INVALID_REQUEST,
    ErrorCode.FENCED_TOKEN: ErrorCode.INVALID_REQUEST,
}
"""Each of our own codes -> the code that Kafka's clients get instead."""


def kafka_code(code: int) -> int:
    """The code that a Kafka client may see."""
    return KAFKA_CODES.get(code, code)
