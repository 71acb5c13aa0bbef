"""The topics in which the brokers keep state of their own. Clients may read them, and change them only through the APIs that the
state belongs to."""

from __future__ import annotations

from strandline.protocol.errors import BrokerError, ErrorCode

OFFSETS_TOPIC = "__consumer_offsets"
"""The groups and their committed offsets (`broker/groups/`)."""
TRANSACTION_STATE_TOPIC = "__transaction_state"
"""The transactional ids and their transactions (`broker/transactions/`)."""
INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC})


def refuse_internal(topic: str, what: str) -> None:
    """Raise INVALID_TOPIC_EXCEPTION if the topic is internal. `what`: the reason, as the second half of the error's sentence."""
    if topic in INTERNAL_TOPICS:
        raise BrokerError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic} is an internal topic: {what}")
