"""A consumer's side of a fetch session with a broker."""

from __future__ import annotations

from strandline.client.consumer.fetch_session import FetchSession
from strandline.protocol.messages.data import FetchPartition

TOPIC = b"topic-id-number1"


def fetch(partition: int, offset: int) -> FetchPartition:
    return FetchPartition(TOPIC, partition, 0, offset, -1, -1, 1 << 20)


def test_without_a_session_a_partition_that_was_read_comes_last_in_the_next_request() -> None:
    """A broker fills its response in the order of the request. One busy partition could otherwise fill it each time, and those
    behind it would never be read."""
    session = FetchSession()
    for partition in range(3):
        session.put(fetch(partition, 0))
    order = []
    for offset in range(1, 7):
        asked = session.plan().partitions
        assert session.on_response(0, session_id=0)
        order.append(asked[0].partition)
        session.put(fetch(asked[0].partition, offset))
    assert order == [0, 1, 2, 0, 1, 2]
