"""Measures what the authorizer costs: a check of one right, and the guards of a request before its handler.

    python benchmarks/authorizer.py                  10, 1,000 and 10,000 access rules

A remembered check is the usual one: the same principal, address, operation and resource as before, since the last change of a
rule. The guard of a request is measured with a handler that does nothing; without an authorizer no handler has a guard. Each
figure is the smallest of several repetitions, in microseconds.
"""

from __future__ import annotations

import argparse
import timeit
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from strandline.broker.security.guarding import guarded_handlers
from strandline.controller.metadata.security.access import Rights
from strandline.controller.metadata.security.authorizer import Authorizer
from strandline.protocol import apis
from strandline.protocol.messages import admin, data, groups
from strandline.protocol.messages import security as s
from strandline.protocol.records.builder import encode_batch
from strandline.protocol.security.principal import Principal

ALICE, HOST = Principal("User", "alice"), "10.0.0.1"
TOPICS = [bytes([number]) * 16 for number in range(10)]


def rules(count: int) -> dict[bytes, s.AclBinding]:
    """`count` access rules of a hundred principals, half literal and half prefixed, and the rules that the measured requests
    need."""
    acls = [
        s.AclBinding(s.TOPIC_RESOURCE, f"topic-{i}", 3 + i % 2, f"User:user-{i % 100}", "*", s.WRITE, s.ALLOW)
        for i in range(count)
    ]
    for operation in (s.WRITE, s.READ):
        acls.append(s.AclBinding(s.TOPIC_RESOURCE, "bench-", s.PREFIXED_PATTERN, str(ALICE), "10.0.0.0/8", operation, s.ALLOW))
    acls.append(s.AclBinding(s.GROUP_RESOURCE, "readers", s.LITERAL_PATTERN, str(ALICE), "*", s.READ, s.ALLOW))
    return {number.to_bytes(16, "big"): acl for number, acl in enumerate(acls)}


def microseconds(work: Callable[[], object], number: int = 20_000) -> float:
    return min(timeit.repeat(work, number=number, repeat=7)) / number * 1e6


def request(api_key: int, body: Any) -> Any:
    return SimpleNamespace(
        principal=ALICE, client_host=HOST, api_key=api_key, client_id="bench", received_at=0.0, body=body, reply=lambda *_: None
    )


def requests() -> dict[str, Any]:
    batch = memoryview(encode_batch([(None, b"x" * 100, [], 1)] * 100, producer_id=7, producer_epoch=0, base_sequence=0))
    return {
        "Produce, 1 partition": request(
            apis.PRODUCE, data.ProduceRequest(None, -1, 100, [data.ProducePartition(TOPICS[0], 0)], [batch])
        ),
        "Produce, 10 partitions": request(
            apis.PRODUCE, data.ProduceRequest(None, -1, 100, [data.ProducePartition(t, 0) for t in TOPICS], [batch] * 10)
        ),
        "Fetch of a consumer": request(apis.FETCH, data.FetchRequest(-1, -1, 0, 1, 1, 0, 5, 3, [])),
        "Metadata of 10 topics": request(
            apis.METADATA, admin.MetadataRequest([admin.MetadataTopicRequest(f"bench-{i}") for i in range(10)])
        ),
        "OffsetCommit, 10 partitions": request(
            apis.OFFSET_COMMIT,
            groups.OffsetCommitRequest("readers", 1, "m", None, [groups.OffsetCommitPartition(t, 0, 1) for t in TOPICS]),
        ),
    }


def appended(request: Any) -> None:
    """The first batch of a producer was appended: its principal owns the producer id."""
    request.reply(data.ProduceResponse([data.ProducePartitionResponse(p.topic_id, p.partition) for p in request.body.partitions]))


def ignored(request: Any) -> None:
    pass


def _once(first: Callable[[Any], None]) -> Callable[[Any], None]:
    """A handler that answers the first request by `first`, and ignores the others."""
    rest = [first]
    return lambda request: rest.pop()(request) if rest else None


def measure(count: int) -> None:
    authorizer = Authorizer([Principal("User", "admin")])
    names = {topic_id: SimpleNamespace(name=f"bench-{number}") for number, topic_id in enumerate(TOPICS)}
    image: Any = SimpleNamespace(offset=1, acls=rules(count), topics_by_id=names, producer_numbers={})
    authorizer.use(image)
    question = (ALICE, HOST, s.WRITE, s.TOPIC_RESOURCE, "bench-3")
    print(f"{count:,} rules")
    print(f"    {'a remembered check':32}{microseconds(lambda: authorizer.authorize(*question)):8.2f} us")
    print(f"    {'a check that is not remembered':32}{microseconds(lambda: authorizer.decide(*question)):8.2f} us")
    rights = Rights(authorizer, lambda: image)
    for name, asked in requests().items():
        handler = guarded_handlers({asked.api_key: _once(appended if asked.api_key == apis.PRODUCE else ignored)}, rights)[
            asked.api_key
        ]
        print(f"    {name:32}{microseconds(lambda handler=handler, asked=asked: handler(asked)):8.2f} us")  # type: ignore[misc]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rules", type=int, nargs="*", default=[10, 1000, 10_000])
    for count in parser.parse_args().rules:
        measure(count)


if __name__ == "__main__":
    main()
