"""Record batches are byte for byte Kafka's: compared with those of aiokafka for the same records."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from make_golden_batches import CASES

from strandline.protocol.records import batch as v2
from strandline.protocol.records.builder import encode_batch
from strandline.protocol.records.reader import decode_batch

GOLDEN = {
    name: bytes.fromhex(raw) for name, raw in json.loads((Path(__file__).parent / "golden_batches.json").read_text()).items()
}


def test_every_case_has_its_golden_bytes():
    assert GOLDEN.keys() == CASES.keys()


@pytest.mark.parametrize("name", CASES)
def test_the_builder_makes_the_golden_bytes(name):
    case = CASES[name]
    producer_id, epoch, sequence = case.get("producer", (-1, -1, -1))
    ours = encode_batch(
        [(key, value, headers, timestamp) for key, value, headers, timestamp in case["records"]],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        is_transactional=case.get("transactional", False),
    )
    assert ours == GOLDEN[name]


@pytest.mark.parametrize("name", CASES)
def test_the_reader_gives_back_the_records_of_the_golden_bytes(name):
    raw, records = GOLDEN[name], CASES[name]["records"]
    header = v2.read_header(raw)
    assert header.size == len(raw)
    assert header.record_count == len(records)
    assert header.is_transactional == CASES[name].get("transactional", False)
    read = [[r.key, r.value, [list(h) for h in r.headers], r.timestamp_ms] for r in decode_batch(raw, 0, header)]
    assert read == records


def test_sequence_numbers_wrap_within_a_batch():
    """The golden batch of the idempotent producer starts 47 below the largest sequence number and has 100 records."""
    header = v2.read_header(GOLDEN["idempotent producer"])
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (4711, 3, 2**31 - 48)
    assert header.last_sequence == 51
