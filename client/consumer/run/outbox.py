"""Sends failed records to the retry topic and to the dead-letter topic, and waits until they are acknowledged.

A record counts as finished when it is acknowledged there. So however the process ends, the record is in one of the two topics, or
is handled again, or both.
"""

from __future__ import annotations

from strandline.client.consumer.records import AnyRecord
from strandline.client.consumer.run.headers import HeaderList, without_traceback
from strandline.client.errors import DeliveryFailed, RecordTooLarge, UsageError
from strandline.client.options import REQUEST_SIZE_MAX, ClientOptions, table_of
from strandline.client.producer.producer import Producer
from strandline.protocol.doors import Doors
from strandline.protocol.errors import ErrorCode

BUFFER_MEMORY = 4 * REQUEST_SIZE_MAX
"""Bytes. Far less is used, because each call waits for the acknowledgement of its record."""


def outbox_producer(options: ClientOptions, doors: Doors) -> Producer:
    """A producer for the consumer's cluster. It accepts every record that the consumer could read, whatever its size."""
    common = {row.name: getattr(options, row.name) for row in table_of(ClientOptions)}
    return Producer(doors=doors, max_request_size=REQUEST_SIZE_MAX, buffer_memory=BUFFER_MEMORY, **common)


def checked_producer(producer: Producer) -> Producer:
    """The program's producer. UsageError if it does not wait for acknowledgements by all in-sync replicas, or would serialize
    bytes once more."""
    options = producer.options
    if options.required_acks != -1:
        raise UsageError(f'the producer for failed records needs acks="all", not {options.acks!r}: they must not be lost')
    if options.key_serializer is not None or options.value_serializer is not None:
        raise UsageError("the producer for failed records must have no serializers: it sends keys and values as they were read")
    return producer


class Outbox:
    """Sends failed records with one producer."""

    def __init__(self, producer: Producer, *, is_own: bool) -> None:
        """`is_own`: the outbox starts and stops the producer."""
        self._producer = producer
        self._is_own = is_own

    async def start(self) -> None:
        """Start the producer, if it is our own. NoBrokersAvailable if no bootstrap server answers."""
        if self._is_own:
            await self._producer.start()

    async def stop(self) -> None:
        """Stop the producer, if it is our own. Nothing waits in it: a call that ends before the acknowledgement was cancelled,
        and its record counts as unfinished."""
        if self._is_own:
            await self._producer.stop(timeout_ms=0)

    async def send(self, topic: str, record: AnyRecord, headers: HeaderList) -> None:
        """Send the record's key and value with these headers, and wait for the acknowledgement. A record that is too large is
        sent without the traceback. Raises the errors of `Producer.send_and_wait`."""
        try:
            await self._producer.send_and_wait(topic, record.value, key=record.key, headers=headers)
        except (RecordTooLarge, DeliveryFailed) as e:
            if isinstance(e, DeliveryFailed) and e.code != ErrorCode.MESSAGE_TOO_LARGE:
                raise
            await self._producer.send_and_wait(topic, record.value, key=record.key, headers=without_traceback(headers))
