"""The keys of the transaction coordinator, which runs on the brokers: a part of the table in `node_keys.py`."""

from __future__ import annotations

from strandline.controller.metadata.config_keys import ConfigKey

TRANSACTION_KEYS: tuple[ConfigKey, ...] = (
    ConfigKey(
        "transaction.state.log.num.partitions",
        "int",
        50,
        "",
        "partitions of __transaction_state, when it is created; each transactional id belongs to one of them",
        min=1,
    ),
    ConfigKey(
        "transaction.state.log.replication.factor",
        "int",
        3,
        "",
        "replicas of __transaction_state; the topic is not created before there are so many brokers",
        min=1,
        max=32767,
    ),
    ConfigKey(
        "transaction.state.log.min.isr",
        "int",
        2,
        "",
        "min.insync.replicas of __transaction_state when it is created; with fewer in sync, no transaction begins or ends",
        min=1,
    ),
    ConfigKey(
        "transaction.state.log.segment.bytes",
        "int",
        100 << 20,
        "bytes",
        "the segment size of __transaction_state; a new coordinator reads a partition, which closed segments keep short",
        min=1,
    ),
    ConfigKey(
        "transaction.max.timeout.ms",
        "int",
        900_000,
        "ms",
        "the longest transaction.timeout.ms that a producer may ask for",
        min=1,
    ),
    ConfigKey(
        "transactional.id.expiration.ms",
        "int",
        604_800_000,
        "ms",
        "a transactional id without a transaction is forgotten after this time",
        min=1,
    ),
    ConfigKey(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        "int",
        10_000,
        "ms",
        "how often transactions that take longer than their timeout are looked for, and aborted",
        min=1,
    ),
    ConfigKey(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        "int",
        3_600_000,
        "ms",
        "how often transactional ids that have expired are looked for, and forgotten",
        min=1,
    ),
)
