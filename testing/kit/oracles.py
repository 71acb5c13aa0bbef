"""Checks of a cluster: no acknowledged record is lost, and all replicas hold the same bytes, or if the topic is compacted, the
same records.

They read the cluster only as a client does, and the bytes of its logs; they do not trust the state that it reports.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from strandline.client import Admin, Consumer, ConsumerRecord, RecordMetadata, TopicPartition
from strandline.protocol.errors import UsageError
from strandline.reach import reach
from strandline.testing.comparison import cleaned_logs_differ
from strandline.testing.history import ALL, EVERY_ACK, Acks, History, Verdict, check
from strandline.testing.kit.nodes import KitError
from strandline.testing.kit.policies import Policies
from strandline.testing.kit.recording import FINAL, name_of

POLL_MS = 200
DEPOSED_S = 4.0
"""Seconds that `read_all` waits for a log end as high as the known one. A leader that does not know yet that it was deposed
returns an older end."""

Acked = tuple[RecordMetadata, bytes]
"""The metadata that a producer received for a record, and the value that it had sent."""


async def read_all(bootstrap: str, topic: str, within_s: float, known: Mapping[int, int] | None = None) -> list[ConsumerRecord]:
    """Read all records of the topic with a new consumer, from the earliest offset to the current end; sorted by partition and
    offset. `known`: partition -> an end that a client has seen. If a broker returns a lower end, ask again for up to
    DEPOSED_S. KitError: not everything could be read within `within_s` seconds."""
    places = await _places(bootstrap, topic, within_s)
    found: dict[TopicPartition, list[ConsumerRecord]] = {place: [] for place in places}
    now = asyncio.get_running_loop().time
    deadline = now() + within_s
    async with Consumer(**reach(bootstrap), auto_offset_reset="earliest") as consumer:
        await consumer.assign(places)
        first, ends = await consumer.beginning_offsets(places), await consumer.end_offsets(places)
        doubted = now() + min(DEPOSED_S, within_s)
        while now() < doubted and any(ends[place] < (known or {}).get(place.partition, 0) for place in places):
            await asyncio.sleep(POLL_MS / 1000)
            ends = await consumer.end_offsets(places)
        left = {place for place in places if ends[place] > first[place]}
        while left:
            if now() >= deadline:
                behind = ", ".join(f"{place} up to {ends[place]}" for place in sorted(left))
                raise KitError(f"could not read all records within {within_s:g} s; not read to the end: {behind}")
            for place, records in (await consumer.getmany(timeout_ms=POLL_MS)).items():
                found[place] += [record for record in records if record.offset < ends[place]]
            # The last offsets of a compacted topic may have no record.
            left = {place for place in left if await consumer.position(place) < ends[place]}
    return [record for place in places for record in found[place]]


async def _places(bootstrap: str, topic: str, within_s: float) -> list[TopicPartition]:
    async with Admin(**reach(bootstrap)) as admin:
        (description,) = await admin.describe_topics([topic], timeout_ms=within_s * 1000)
    return [TopicPartition(topic, partition.partition) for partition in description.partitions]


async def log_starts(bootstrap: str, topic: str, within_s: float) -> dict[int, int]:
    """Partition -> the offset at which its log starts."""
    places = await _places(bootstrap, topic, within_s)
    async with Consumer(**reach(bootstrap)) as consumer:
        return {place.partition: offset for place, offset in (await consumer.beginning_offsets(places)).items()}


async def look_up(bootstrap: str, policies: Policies, topics: Iterable[str], history: History) -> None:
    """Note which of these topics are compacted now, and declare those in the history that are or were."""
    async with Admin(**reach(bootstrap)) as admin:
        await policies.look(admin, topics, history)


async def final_verdict(
    bootstrap: str,
    history: History,
    policies: Policies,
    within_s: float,
    *,
    acks: Acks = EVERY_ACK,
    idempotent: bool = True,
) -> Verdict:
    """Read every topic of the history once more, add that as the final read, and check the history."""
    history.polls[:] = [poll for poll in history.polls if not poll.final]
    for topic in topics_of(history):
        by_partition: dict[int, list[tuple[int, bytes]]] = {}
        began_at = history.now()
        for record in await read_all(bootstrap, topic, within_s, known_ends(history, topic)):
            by_partition.setdefault(record.partition, []).append((record.offset, name_of(record.value, record.headers)))
        for partition in range(len(await _places(bootstrap, topic, within_s))):
            history.poll(FINAL, (topic, partition), by_partition.get(partition, []), final=True, began_at=began_at)
    await look_up(bootstrap, policies, topics_of(history), history)
    return check(history, acks=acks, idempotent=idempotent)


def known_ends(history: History, topic: str) -> dict[int, int]:
    """Partition -> the offset after its last acknowledged record."""
    ends: dict[int, int] = {}
    for send in history.sends:
        if isinstance(send.partition, tuple) and send.partition[0] == topic:
            ends[send.partition[1]] = max(ends.get(send.partition[1], 0), send.offset + 1)
    return ends


def topics_of(history: History) -> list[str]:
    """The topics in a history, sorted. UsageError: the history has a partition that is no (topic, index) pair."""
    places = {send.partition for send in history.sends} | {poll.partition for poll in history.polls}
    for place in places - {None}:
        if not (isinstance(place, tuple) and len(place) == 2 and isinstance(place[0], str)):
            raise UsageError(f"in a history for a cluster, a partition must be (topic, index), not {place!r}")
    return sorted({place[0] for place in places if isinstance(place, tuple)})


def too_few(judged: int, at_least: int, history: History | None) -> str:
    """Message that too few acknowledgements were checked to prove anything; empty if there were enough."""
    if judged >= at_least:
        return ""
    if history is None:
        seen = "the number of given pairs"
    elif not history.sends:
        seen = "the history has no send; only clients made by cluster.producer(), or with history=..., record their sends in it"
    else:
        outcomes = Counter(f"{send.outcome}, acks={'all' if send.acks == ALL else send.acks}" for send in history.sends)
        seen = "the sends of the history: " + "; ".join(f"{number} {kind}" for kind, number in sorted(outcomes.items()))
    return (
        f"only {judged} acknowledgements were checked, expected at least {at_least} ({seen}); "
        "if no send has to be acknowledged, pass at_least=0"
    )


async def missing(bootstrap: str, acked: Iterable[Acked], policies: Policies, within_s: float) -> list[str]:
    """Descriptions of the acknowledged records that are not at their offsets. UsageError: a record of a compacted topic is not
    there, and without its key it is unknown whether a newer one has superseded it."""
    by_topic: dict[str, list[Acked]] = {}
    for metadata, value in acked:
        by_topic.setdefault(metadata.topic, []).append((metadata, value))
    lost = []
    for topic, promises in by_topic.items():
        ends = {m.partition: m.offset + 1 for m, _ in sorted(promises, key=lambda promise: promise[0].offset)}
        there = {(r.partition, r.offset): r.value for r in await read_all(bootstrap, topic, within_s, ends)}
        for metadata, value in promises:
            found = there.get((metadata.partition, metadata.offset))
            if found != value:
                place = f"{topic}-{metadata.partition}, offset {metadata.offset}"
                if found is None and topic in policies:
                    raise UsageError(
                        f"there is no record at {place}; {topic} is compacted, and pairs have no keys, so it is unknown whether "
                        "a newer record has superseded it: record the sends in a history, with their keys"
                    )
                lost.append(f"{place}: {value!r} was acknowledged, but {'no record' if found is None else repr(found)} is there")
    return lost


def differences(topic: str, partition: int, logs: Mapping[int, bytes], cleaned_from: int | None = None) -> str:
    """Description of how the logs of a partition differ; empty if they do not. They are compared byte by byte, or if
    `cleaned_from` is given, by their records from this offset on, of which each replica's cleaner may have removed others."""
    if len(set(logs.values())) <= 1:
        return ""
    if cleaned_from is not None:
        text = cleaned_logs_differ(logs, cleaned_from)
        return text and f"the replicas of {topic}-{partition} differ: {text}"
    shown = "; ".join(
        f"broker {b}: {len(log)} bytes, sha256 {hashlib.sha256(log).hexdigest()[:12]}" for b, log in sorted(logs.items())
    )
    return f"the replicas of {topic}-{partition} differ from byte {_first_difference(list(logs.values()))} on: {shown}"


def not_compared(topic: str, partition: int, replicas: Sequence[int], logs: Mapping[int, bytes]) -> str:
    """Message that equal logs prove nothing: a replica's log is missing, or there is only one; otherwise empty."""
    if absent := sorted(set(replicas) - logs.keys()):
        return f"{topic}-{partition}: the log of broker {', '.join(map(str, absent))} could not be read, so it was not compared"
    return f"{topic}-{partition} has only one replica, so no logs were compared" if len(replicas) < 2 else ""


def _first_difference(logs: Sequence[bytes]) -> int:
    """Position of the first byte that differs, found by binary search."""
    equal, different = 0, min(map(len, logs)) + 1
    while equal + 1 < different:
        middle = (equal + different) // 2
        if len({log[:middle] for log in logs}) == 1:
            equal = middle
        else:
            different = middle
    return equal
