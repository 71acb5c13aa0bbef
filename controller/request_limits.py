"""The limit of what one request may change. Its records are one atomic batch, and while it is decided, written and applied, a
controller serves no other request.

Kafka's controllers refuse an operation of more than 10,000 records (MAX_RECORDS_PER_USER_OP) with the same error. Here the items
of a request are counted before they are examined, so items that change nothing count, too.
"""

from __future__ import annotations

from strandline.protocol.errors import BrokerError, ErrorCode

CHANGES_MAX = 10_000


def check_amount(count: int, verb: str, things: str) -> None:
    """Raises BrokerError POLICY_VIOLATION for a request that would create, alter or delete (`verb`) too many of these things."""
    if count > CHANGES_MAX:
        text = f"one request may {verb} at most {CHANGES_MAX} {things}, not {count}; send several requests"
        raise BrokerError(ErrorCode.POLICY_VIOLATION, text)
