"""Writes `golden_batches.json`: record batches as another library encodes them.

    pip install aiokafka && python tests/protocol/make_golden_batches.py

aiokafka is not needed to run the tests: its bytes are checked in. Made with aiokafka 0.14.0.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TARGET = Path(__file__).parent / "golden_batches.json"
TIME = 1_700_000_000_000

CASES: dict[str, dict[str, Any]] = {
    "one plain record": {"records": [[None, b"hello", [], TIME]]},
    "key and headers": {
        "records": [
            [b"key", b"value", [["trace", b"\x00\xff"], ["empty", b""], ["null", None], ["ключ", b"1"]], TIME],
            [b"", b"", [], TIME],
        ]
    },
    "nulls": {"records": [[None, None, [], TIME], [b"tombstone", None, [], TIME], [None, b"", [], TIME]]},
    "timestamps that go up and down": {
        "records": [[None, b"a", [], TIME], [None, b"b", [], TIME + 100_000], [None, b"c", [], TIME - 65]]
    },
    "200 plain records of one size": {"records": [[None, b"value-%04d" % i, [], TIME] for i in range(200)]},
    "100 plain records of many sizes": {"records": [[None, b"v" * (i * 7 % 131), [], TIME] for i in range(100)]},
    "100 keyed records of one shape": {"records": [[b"key-%03d" % i, b"value-%03d" % i, [], TIME] for i in range(100)]},
    "long values": {"records": [[None, b"x" * 8191, [], TIME], [None, b"y" * 8192, [], TIME], [b"k" * 8193, b"", [], TIME]]},
    "idempotent producer": {"producer": [4711, 3, 2147483600], "records": [[None, b"n%d" % i, [], TIME] for i in range(100)]},
    "transactional": {"producer": [2**40, 0, 0], "transactional": True, "records": [[b"k", b"v", [], TIME]]},
}


def build(case: dict[str, Any]) -> bytes:
    from aiokafka.record.default_records import DefaultRecordBatchBuilder

    producer_id, epoch, sequence = case.get("producer", (-1, -1, -1))
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=int(case.get("transactional", False)),
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        batch_size=1 << 20,
    )
    for offset, (key, value, headers, timestamp) in enumerate(case["records"]):
        builder.append(offset, timestamp, key, value, [(name, v) for name, v in headers])
    return bytes(builder.build())


if __name__ == "__main__":
    TARGET.write_text(json.dumps({name: build(case).hex() for name, case in CASES.items()}, indent=0) + "\n")
