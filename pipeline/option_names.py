"""Errors for option names that the data source does not accept: the name that was meant, or what to do instead.

A job that is moved from Spark's Kafka connector has options of that connector and, with the prefix `kafka.`, of Kafka's Java
client. Those with the same meaning here are accepted (options.py). `KAFKA` lists the others; it is also the table in
docs/spark.md:

    python -m strandline.pipeline.option_names
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import NamedTuple

CLIENT_PREFIXES = ("strandline.", "kafka.")
"""Prefixes of client options; `kafka.` is for jobs that are moved from Spark's Kafka connector."""


class Foreign(NamedTuple):
    """Options of Kafka's connector or client that have another name here, or no counterpart."""

    names: tuple[str, ...]
    """Names as users write them. A name that ends in `*` stands for all with that prefix."""
    instead: str
    """What to do instead, as the end of a sentence."""


_NO_GROUPS = "leave it out, because there are no consumer groups, and progress is kept in Spark's checkpoint"
_BY_OFFSETS = "set startingOffsets instead, and failOnDataLoss for records that are gone"
KAFKA: tuple[Foreign, ...] = (
    Foreign(("kafka.group.id", "groupIdPrefix"), _NO_GROUPS),
    Foreign(
        ("kafka.enable.auto.commit", "kafka.auto.commit.interval.ms", "kafka.session.timeout.ms", "kafka.heartbeat.interval.ms"),
        _NO_GROUPS,
    ),
    Foreign(("kafka.max.poll.interval.ms", "kafka.partition.assignment.strategy", "kafka.group.*"), _NO_GROUPS),
    Foreign(("kafka.auto.offset.reset",), _BY_OFFSETS),
    Foreign(("kafkaConsumer.pollTimeoutMs",), "set readTimeoutMs instead"),
    Foreign(
        ("fetchOffset.numRetries", "fetchOffset.retryIntervalMs"),
        "set strandline.max_block_ms instead: offsets are looked up again until then",
    ),
    Foreign(("useDeprecatedOffsetFetching",), "leave it out, because offsets are looked up without consumer groups"),
    Foreign(
        ("kafkaConsumer.*",),
        "leave it out, because each worker process keeps its connections by itself",
    ),
    Foreign(
        ("kafka.sasl.kerberos.*", "kafka.sasl.login.*", "kafka.sasl.client.callback.handler.class"),
        "leave it out, because there is no Kerberos, and no code is loaded by its name",
    ),
    Foreign(
        ("kafka.ssl.truststore.certificates", "kafka.ssl.keystore.key", "kafka.ssl.keystore.certificate.chain"),
        "set kafka.ssl.truststore.location and kafka.ssl.keystore.location to PEM files that every executor has",
    ),
    Foreign(("kafka.compression.*",), "set compression.type on the topic instead: its leaders compress every batch then"),
    Foreign(
        ("kafka.transactional.id", "kafka.transaction.*"),
        "leave it out, because delivery=exactly-once needs no transactions, and producerName names the query",
    ),
    Foreign(("kafka.retries",), "set strandline.delivery_timeout_ms instead: a batch is sent again until then"),
    Foreign(("kafka.partitioner.*",), "add a column partition instead, or a key"),
    Foreign(
        ("kafka.key.deserializer", "kafka.value.deserializer"),
        "leave it out, because key and value are binary, and Spark casts columns",
    ),
    Foreign(
        ("kafka.key.serializer", "kafka.value.serializer"),
        "leave it out, because key and value are binary or string, and Spark casts columns",
    ),
    Foreign(("kafka.interceptor.classes",), "leave it out, because there are no interceptors"),
)
OURS: tuple[Foreign, ...] = (
    Foreign(
        ("strandline.ssl_context", "strandline.security", "strandline.sasl_oauth_token_provider"),
        "name files instead: clientConfig, or strandline.ssl_cafile and so on",
    ),
    Foreign(
        ("strandline.producer_name", "strandline.producer_work_epoch", "strandline.producer_note"),
        "leave it out, because the sink names its producers, and producerName names the query",
    ),
    Foreign(("strandline.group_id",), _NO_GROUPS),
    Foreign(("strandline.auto_offset_reset",), _BY_OFFSETS),
    Foreign(("strandline.key_deserializer", "strandline.value_deserializer"), "leave it out, because Spark casts columns"),
    Foreign(("strandline.key_serializer", "strandline.value_serializer"), "leave it out, because Spark casts columns"),
)
"""Options of our client that cannot work inside the data source."""
OFTEN_MEANT = {"topics": "subscribe", "servers": "bootstrap.servers", "brokers": "bootstrap.servers"}
"""Frequent wrong names that are too different for the search of the nearest name, and the options that they mean."""


def refusal(name: str) -> str | None:
    """The error for an option that Kafka or our client has but that is not supported here; None for all other options."""
    folded = _folded(name)
    for foreign in (*KAFKA, *OURS):
        if any(_matches(folded, _folded(each)) for each in foreign.names):
            return f"option {name} is not supported: {foreign.instead}"
    return None


def _folded(name: str) -> str:
    """The name in lower case, with dots in client options: users write them with dots or underscores."""
    low = name.lower()
    for prefix in CLIENT_PREFIXES:
        if low.startswith(prefix):
            return prefix + low[len(prefix) :].replace("_", ".")
    return low


def _matches(name: str, pattern: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def unknown(name: str, own: Iterable[str], others: Iterable[str], side: str) -> str:
    """The error for an unknown option of the `side` (source or sink). It suggests the nearest of the side's `own` options, or
    says that the option belongs to the other side (`others`)."""
    if (exact := {each.lower(): each for each in others}.get(name.lower())) is not None:
        return f"option {exact} is for {'sinks, not for sources' if side == 'source' else 'sources, not for sinks'}"
    return f"unknown option {name!r}" + _hint(name, own)


def unknown_of_client(written: str, name: str, own: Iterable[str], others: Iterable[str], side: str) -> str:
    """The error for an unknown client option, like `unknown`; `name` is the part of `written` after the prefix."""
    if name in set(others):
        return f"option {written} is for {'sinks, not for sources' if side == 'source' else 'sources, not for sinks'}"
    near = difflib.get_close_matches(name, sorted(own), n=1, cutoff=0.6)
    hint = f"; did you mean 'strandline.{near[0]}'?" if near else "; docs/client.md has the options of the client"
    return f"unknown option {written!r}{hint}"


def _hint(name: str, known: Iterable[str]) -> str:
    by_lower = {each.lower(): each for each in known}
    if (meant := OFTEN_MEANT.get(name.lower())) in by_lower.values():
        return f"; did you mean {meant!r}?"
    near = difflib.get_close_matches(name.lower(), sorted(by_lower), n=1, cutoff=0.6)
    return f"; did you mean {by_lower[near[0]]!r}?" if near else f"; there are {', '.join(sorted(by_lower.values()))}"


def table() -> str:
    """The table in docs/spark.md, as Markdown."""
    rows = ["| option of Kafka's connector | here |", "|---|---|"]
    rows += [f"| {', '.join(f'`{name}`' for name in foreign.names)} | {foreign.instead} |" for foreign in KAFKA]
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    print(table(), end="")
