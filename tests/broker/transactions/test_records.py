"""The records of `__transaction_state`: round trips, damaged bytes, and what Kafka's own tools print."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from real_kafka import dump, kafka_tools
from storage_kit import NOW_MS, open_log
from thorough import examples

from strandline.broker.groups.records.wire import Writer
from strandline.broker.transactions.records import (
    MalformedRecord,
    TransactionRecord,
    UnknownKeyVersion,
    decode_record,
    encode_record,
)
from strandline.broker.transactions.states import State, Transaction
from strandline.protocol.errors import BrokerError
from strandline.protocol.records.builder import encode_batch
from strandline.storage.files import RealFiles

WRITTEN = [state for state in State if state not in (State.DEAD, State.PREPARE_EPOCH_FENCE)]
INT64, INT16 = st.integers(-1, 2**63 - 1), st.integers(-1, 2**15 - 1)
PARTITIONS = st.frozensets(st.tuples(st.text(max_size=5), st.integers(0, 2**31 - 1)), max_size=6).map(lambda s: tuple(sorted(s)))


@st.composite
def transactions(draw: st.DrawFn) -> Transaction:
    state = draw(st.sampled_from(WRITTEN))
    return Transaction(
        transactional_id=draw(st.text(min_size=1, max_size=20)),
        producer_id=draw(INT64),
        producer_epoch=draw(INT16),
        last_producer_epoch=draw(INT16),
        previous_producer_id=draw(INT64),
        next_producer_id=draw(INT64),
        timeout_ms=draw(st.integers(1, 2**31 - 1)),
        state=state,
        partitions=() if state is State.EMPTY else draw(PARTITIONS),
        started_at_ms=draw(INT64),
        updated_at_ms=draw(INT64),
        version=draw(st.integers(0, 2)),
    )


@settings(max_examples=examples(400))
@given(transactions())
def test_record_is_read_as_it_was_written(transaction: Transaction) -> None:
    record = TransactionRecord(transaction.transactional_id, transaction)
    assert decode_record(*encode_record(record)) == record


def test_tombstone_is_read_as_it_was_written() -> None:
    assert decode_record(*encode_record(TransactionRecord("a", None))) == TransactionRecord("a", None)


@settings(max_examples=examples(200))
@given(transactions(), st.data())
def test_damaged_bytes_are_an_error_of_one_kind(transaction: Transaction, data: st.DataObject) -> None:
    """A load fails with a reason then, and never with a traceback or a state that was not written."""
    key, value = encode_record(TransactionRecord(transaction.transactional_id, transaction))
    assert value is not None
    damaged = bytearray(value)
    damaged[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
    for raw in (bytes(damaged), value[: data.draw(st.integers(0, len(value) - 1))]):
        try:
            found = decode_record(key, raw).value
        except MalformedRecord:
            continue
        assert found is not None
        assert found.state in WRITTEN


def test_early_version_of_kafka_is_read() -> None:
    writer = Writer()
    for write, value in (
        (writer.int16, 0),
        (writer.int64, 7),
        (writer.int16, 3),
        (writer.int32, 60_000),
        (writer.int8, State.ONGOING),
    ):
        write(value)

    def topic(name: str) -> None:
        writer.text(name)
        writer.items([0, 2], writer.int32)

    writer.items(["orders"], topic)
    writer.int64(11)
    writer.int64(10)
    key, _ = encode_record(TransactionRecord("a", None))
    found = decode_record(key, writer.data).value
    assert found == Transaction(
        transactional_id="a",
        producer_id=7,
        producer_epoch=3,
        timeout_ms=60_000,
        state=State.ONGOING,
        partitions=(("orders", 0), ("orders", 2)),
        started_at_ms=10,
        updated_at_ms=11,
        version=0,
    )


def test_what_cannot_be_read_says_so() -> None:
    key, _ = encode_record(TransactionRecord("a", None))
    with pytest.raises(UnknownKeyVersion, match="version 9"):
        decode_record(b"\0\x09" + key[2:], None)
    with pytest.raises(MalformedRecord, match="no key"):
        decode_record(None, None)
    with pytest.raises(MalformedRecord, match="known are 0 to 1"):
        decode_record(key, b"\0\x02")
    with pytest.raises(BrokerError, match="longer than 32767"):
        encode_record(TransactionRecord("x" * 40_000, None))


@pytest.mark.kafka
def test_kafka_prints_the_records_of_our_log(tmp_path: Path) -> None:
    """Operators look into `__transaction_state` with Kafka's tools, which must not stumble over our own tag."""
    ongoing = Transaction(
        transactional_id="orders-1",
        producer_id=4000,
        producer_epoch=3,
        last_producer_epoch=2,
        previous_producer_id=3999,
        timeout_ms=60_000,
        state=State.PREPARE_COMMIT,
        partitions=(("orders", 0), ("orders", 3)),
        started_at_ms=NOW_MS,
        updated_at_ms=NOW_MS + 5,
    )
    empty = Transaction(transactional_id="empty", producer_id=1, producer_epoch=0, timeout_ms=7, updated_at_ms=NOW_MS)
    records = [TransactionRecord(each.transactional_id, each) for each in (ongoing, empty)]
    log = open_log(RealFiles(), str(tmp_path / "__transaction_state-0"))
    for record in [*records, TransactionRecord("empty", None)]:
        log.append_as_leader(bytearray(encode_batch([(*encode_record(record), [], NOW_MS)])), 0, NOW_MS)
    log.close()
    text = dump(kafka_tools(), sorted(tmp_path.glob("*/*.log")), "--transaction-log-decoder")
    for part in (
        '"transactionalId":"orders-1"',
        '"producerEpoch":3,"transactionTimeoutMs":60000,"transactionStatus":2',
        '"producerId":4000',
        '"topic":"orders","partitionIds":[0,3]',
        '"previousProducerId":3999',
        '"clientTransactionVersion":2',
        '"transactionStatus":0,"transactionPartitions":null',
    ):
        assert part in text, text
