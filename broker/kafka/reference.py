"""docs/kafka-apis.md, from the table of APIs: `python -m strandline.broker.kafka.reference > docs/kafka-apis.md`.

A test compares the page with the table, and with the APIs that Kafka's schemas name: each is served, or has a reason here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from strandline.broker.kafka.apis import KAFKA_APIS
from strandline.broker.kafka.call import KafkaApi
from strandline.broker.kafka.errors import KAFKA_CODES
from strandline.broker.kafka.schemas import api_names
from strandline.protocol.errors import ErrorCode

_INTRODUCTION = """\
# Kafka's APIs

Generated from the table of APIs by `python -m strandline.broker.kafka.reference`; do not edit.

The APIs that a broker serves on its listeners for Kafka's clients ([Kafka's clients](kafka-clients.md)), and lists in
ApiVersions. Keys, names and versions are those of Kafka 4.3, whose oldest versions are those of Kafka 2.1. SaslHandshake and
SaslAuthenticate are served where the listener has SASL.

| key | API | versions |
|---:|---|---|
"""
_NODES = "between brokers and controllers, which speak Strandline's protocol with each other"
_TOKENS = "there are no delegation tokens"
_SHARE = "there are no share groups"
_STREAMS = "there are no streams groups; Kafka Streams works with classic groups"
_TELEMETRY = "brokers collect no metrics of clients, so clients send none"

NOT_SERVED: dict[int, str] = {
    38: _TOKENS,
    39: _TOKENS,
    40: _TOKENS,
    41: _TOKENS,
    52: _NODES,
    53: _NODES,
    54: _NODES,
    56: _NODES,
    58: _NODES,
    59: _NODES,
    62: _NODES,
    63: _NODES,
    67: _NODES,
    70: _NODES,
    71: _TELEMETRY,
    72: _TELEMETRY,
    73: _NODES,
    76: _SHARE,
    77: _SHARE,
    78: _SHARE,
    79: _SHARE,
    80: "the controllers of a cluster are fixed",
    81: "the controllers of a cluster are fixed",
    82: "the controllers of a cluster are fixed",
    83: _SHARE,
    84: _SHARE,
    85: _SHARE,
    86: _SHARE,
    87: _SHARE,
    88: _STREAMS,
    89: _STREAMS,
    90: _SHARE,
    91: _SHARE,
    92: _SHARE,
}
"""Key of an API without a translation -> the reason why it is not served."""


def reference() -> str:
    """The whole page."""
    parts = [_INTRODUCTION]
    parts += [f"| {api.key} | {api.name} | {_versions(api)} |\n" for _, api in sorted(KAFKA_APIS.items())]
    parts += ["\n## Not served\n\n| key | API | why |\n|---:|---|---|\n", *_not_served()]
    parts += ["\n## Error codes\n\n", _CODES, *_codes()]
    return "".join(parts)


def _versions(api: KafkaApi) -> str:
    served = f"{api.min_version}" if api.min_version == api.max_version else f"{api.min_version} to {api.max_version}"
    if api.advertised_min < 0:
        return served
    return f"{served}; advertised from {api.advertised_min}, because old versions of librdkafka look at that (KAFKA-18659)"


def _not_served() -> Iterator[str]:
    for key, name in sorted(api_names().items()):
        if key not in KAFKA_APIS:
            yield f"| {key} | {name} | {NOT_SERVED[key]} |\n"


_CODES = """\
Kafka's clients get Kafka's codes. Codes that only Strandline has are replaced on these listeners:

| code here | what a Kafka client gets |
|---|---|
"""


def _codes() -> Iterator[str]:
    for code, kafkas in KAFKA_CODES.items():
        yield f"| {ErrorCode(code).name} | {kafkas.name} |\n"


if __name__ == "__main__":
    sys.stdout.write(reference())
