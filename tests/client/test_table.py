"""`Table` on a real cluster in this process: loading, following, conditional writes, watchers, snapshots, and logs that do not
continue where the table was."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from math import nan
from pathlib import Path
from random import Random

import pytest
from structlog.testing import capture_logs
from waiting import until

from strandline.client import NewTopic, Producer, TopicPartition
from strandline.client.cluster import metadata_updater
from strandline.client.consumer import topic_tracker
from strandline.client.errors import (
    BufferFull,
    ClientClosed,
    ClientError,
    DeliveryTimeout,
    RequestTimeout,
    UnknownTopic,
    UsageError,
)
from strandline.client.producer.partitioner import partition_for_key
from strandline.client.table.entry import ANY, TableChange, VersionConflict
from strandline.client.table.table import Table
from strandline.protocol.doors import Doors
from strandline.testing import Cluster

DAY_MS = 86_400_000


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster(brokers=1, log_cleaner_backoff_ms=50) as made:
        await made.create_topic("users", cleanup_policy="compact,delete")
        yield made


class Clock:
    """The wall clock of a table."""

    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000
        self.doors = Doors(wall_clock_ms=lambda: self.now_ms, random=Random(1))


def table_of(cluster: Cluster, topic: str = "users", **options) -> Table[bytes, bytes]:
    return Table(topic, bootstrap_servers=cluster.bootstrap_servers, **options)


async def fill(cluster: Cluster, first: int, end: int, topic: str = "users") -> None:
    async with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        for number in range(first, end):
            await producer.send(topic, b"%d" % number, b"key-%d" % (number % 100))


async def contents(cluster: Cluster, topic: str = "users") -> dict[bytes, bytes]:
    """The contents of a new table, which reads the whole log because it has no snapshot."""
    async with table_of(cluster, topic) as table:
        return dict(table.items())


# -- reading and writing --------------------------------------------------------------------------------------------------


async def test_table_has_the_last_values_and_follows(cluster: Cluster) -> None:
    await fill(cluster, 0, 250)
    async with table_of(cluster) as table, table_of(cluster) as other:
        assert len(table) == 100
        assert (table.get(b"key-7"), table[b"key-70"], table.get(b"no"), table.get(b"no", b"x")) == (b"207", b"170", None, b"x")
        assert b"key-7" in table
        assert b"no" not in table
        with pytest.raises(KeyError):
            table[b"no"]
        version = await table.put(b"key-7", b"new")
        assert table.entry(b"key-7") == (b"new", version, 0)
        await other.caught_up()
        assert other.get(b"key-7") == b"new"
        await other.delete(b"key-7")
        assert other.get(b"key-7") is None
        await table.caught_up()
        assert set(table) == set(table.keys()) == {key for key, _ in table.items()} == set(other)
        assert sorted(table.values()) == sorted(other.values())
        assert table.health()["state"] == "ok"
    with pytest.raises(ClientClosed, match="was stopped"):
        table.get(b"key-7")


async def test_empty_topic_and_missing_topic(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_updater, "MISSING_TOPIC_GRACE_MS", 50)
    assert await contents(cluster) == {}
    with pytest.raises(UnknownTopic):
        await table_of(cluster, "missing").start()


async def test_keys_and_values_have_types(cluster: Cluster) -> None:
    table = Table(
        "users",
        bootstrap_servers=cluster.bootstrap_servers,
        key_serializer=str.encode,
        key_deserializer=bytes.decode,
        value_serializer=lambda value: json.dumps(value).encode(),
        value_deserializer=json.loads,
    )
    async with table:
        with table.watch(prefix="a") as changes:
            await table.put("alice", {"drinks": "tea"})
            assert await anext(changes) == ("alice", None, {"drinks": "tea"}, 0, 0)
        table["alice"]["drinks"] = "coffee"
        assert list(table.items()) == [("alice", {"drinks": "tea"})], "each call returns an object of its own"
        async with table_of(cluster) as raw:
            await raw.put(b"bob", b"{")
        await table.caught_up()
        with pytest.raises(ClientError, match="the deserializer failed for the value"):
            table.get("bob")
        assert table.get("alice") is not None


async def test_wrong_values_are_usage_errors(cluster: Cluster) -> None:
    with pytest.raises(TypeError, match="did you mean 'snapshot_dir'"):
        Table("users", snapshot_folder="x")
    async with table_of(cluster) as table:
        for wrong in (table.put(b"a", None), table.put("a", b""), table.put(None, b""), table.put(b"a", b"", expect=-1)):
            with pytest.raises(UsageError):
                await wrong
        with pytest.raises(UsageError):
            table.watch(b"a", prefix=b"b")
        with pytest.raises(UsageError, match="was started before"):
            await table.start()
    with pytest.raises(ClientClosed, match="was not started"):
        table_of(cluster).get(b"a")


# -- conditions -----------------------------------------------------------------------------------------------------------


async def test_conditional_write_needs_the_version(cluster: Cluster) -> None:
    async with table_of(cluster) as table, table_of(cluster) as other:
        first = await table.put(b"a", b"1", expect=None)
        await table.put(b"b", b"other key")
        second = await other.put(b"a", b"2", expect=first)
        for expect in (None, first, 1000):
            with pytest.raises(VersionConflict) as caught:
                await table.put(b"a", b"3", expect=expect)
            assert (caught.value.expected, caught.value.actual, caught.value.value) == (expect, second, b"2")
        with pytest.raises(VersionConflict, match="expects no such key, but the version is 2"):
            await table.delete(b"a", expect=None)
        await table.delete(b"a", expect=second)
        with pytest.raises(VersionConflict, match="but there is none"):
            await other.delete(b"a", expect=second)
        assert await other.put(b"a", b"4", expect=None) == 4


async def test_concurrent_updates_are_all_counted(cluster: Cluster) -> None:
    async with table_of(cluster) as table, table_of(cluster) as other:
        await asyncio.gather(*(each.update(b"n", lambda n: b"%d" % (int(n or 0) + 1)) for each in (table, other) * 10))
        await table.caught_up()
        assert table.get(b"n") == b"20"
        assert await table.update(b"n", lambda n: None) is None
        assert b"n" not in table


async def test_write_in_doubt_is_found_in_the_log(cluster: Cluster) -> None:
    """The record is written and every response is lost, until `delivery_timeout_ms` has passed and a second attempt is sent."""
    async with table_of(cluster, delivery_timeout_ms=150, request_timeout_ms=50) as table:
        with cluster.drop("Produce", where="response"):
            writing = asyncio.ensure_future(table.put(b"a", b"1", expect=None))
            await until(lambda: table.metrics()["conditional_attempts"] == 2)
        version = await writing
        assert table.entry(b"a") == (b"1", version, 0)
        assert [record.value for record in await cluster.read_all("users")] == [b"1"]


async def test_write_in_doubt_that_never_arrived_is_a_conflict(cluster: Cluster) -> None:
    async with table_of(cluster, delivery_timeout_ms=150, request_timeout_ms=50) as table:
        with cluster.drop("Produce", where="request") as lost:
            writing = asyncio.ensure_future(table.put(b"a", b"1", expect=None))
            await until(lambda: table.metrics()["conditional_attempts"] == 2)
            lost.stop()
            async with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
                other = await producer.send_and_wait("users", b"2", b"a")
        records = [record.value for record in await cluster.read_all("users")]
        if other.offset == 0:
            with pytest.raises(VersionConflict):
                await writing
            assert records == [b"2"]
        else:
            assert await writing == 0
            assert records == [b"1", b"2"]


async def test_write_stays_in_doubt_if_a_later_attempt_is_rejected(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rejection says nothing about the first attempt, so the error must not say that nothing was written."""
    outcomes: list[Exception] = [DeliveryTimeout("no response", topic="users"), BufferFull("no room")]

    async def send_and_wait(*_: object, **__: object) -> None:
        raise outcomes.pop(0)

    async with table_of(cluster) as table:
        monkeypatch.setattr(table._producer, "send_and_wait", send_and_wait)
        with pytest.raises(DeliveryTimeout, match="not known whether it was written") as caught:
            await table.put(b"a", b"1", expect=None)
        assert isinstance(caught.value.__cause__, BufferFull)
        assert not outcomes


async def test_conflict_is_raised_although_the_value_cannot_be_deserialized(cluster: Cluster) -> None:
    """A program that replaces a damaged value needs its version."""
    async with table_of(cluster) as raw:
        version = await raw.put(b"a", b"{")
    functions = {"value_serializer": str.encode, "value_deserializer": json.loads}
    async with Table("users", bootstrap_servers=cluster.bootstrap_servers, **functions) as table:
        with pytest.raises(VersionConflict) as caught:
            await table.put(b"a", "1", expect=None)
        assert (caught.value.actual, caught.value.value) == (version, None)
        assert isinstance(caught.value.__cause__, ClientError)
        await table.put(b"a", "1", expect=version)
        assert table.get(b"a") == 1


async def test_time_limit_holds_when_the_topic_is_gone(cluster: Cluster) -> None:
    """The producer would wait for metadata longer than the caller allows."""
    async with table_of(cluster, max_block_ms=8000) as table, cluster.admin() as admin:
        await admin.delete_topics(["users"])
        loop = asyncio.get_running_loop()
        for expect in (ANY, None, ANY, None):
            began = loop.time()
            with pytest.raises((RequestTimeout, DeliveryTimeout)):
                await table.put(b"a", b"1", expect=expect, timeout_ms=200)
            assert loop.time() - began < 1


async def test_time_limit_is_a_number(cluster: Cluster) -> None:
    """A timer of NaN never fires, and the call would hang."""
    async with table_of(cluster) as table:
        for call in (table.put(b"a", b"1", timeout_ms=nan), table.caught_up(timeout_ms=nan)):
            with pytest.raises(UsageError, match="timeout_ms"):
                await call


async def test_put_is_bounded_in_time(cluster: Cluster) -> None:
    async with table_of(cluster) as table:
        with cluster.drop("Fetch", where="response"), pytest.raises(RequestTimeout, match="was written at offset 0"):
            await table.put(b"a", b"1", timeout_ms=300)
        await table.caught_up()
        assert table.get(b"a") == b"1"


# -- watchers -------------------------------------------------------------------------------------------------------------


async def test_watcher_sees_changes_and_the_end(cluster: Cluster) -> None:
    async with table_of(cluster) as table:
        changes, one = table.watch(), table.watch(b"b")
        await table.put(b"a", b"1")
        assert await anext(changes) == TableChange(b"a", None, b"1", 0, 0)
        for number in range(3):
            await table.put(b"b", b"%d" % number)
        await table.delete(b"b")
        assert (changes.waiting, one.waiting) == (1, 1)
        assert await anext(changes) == TableChange(b"b", None, None, 4, 3)
        waiting = asyncio.ensure_future(anext(changes))
    with pytest.raises(StopAsyncIteration):
        await waiting
    assert [change.merged async for change in one] == [3]


# -- partitions and logs ----------------------------------------------------------------------------------------------------


async def test_added_partitions_are_read_and_written(cluster: Cluster) -> None:
    """Many keys belong to another partition from then on. Their old records stay, and must neither hide the new ones nor return
    when the keys are deleted."""
    moved = next(key for key in (b"key-%d" % n for n in range(100)) if partition_for_key(key, 4) != 0)
    await fill(cluster, 0, 100)
    async with table_of(cluster) as table, cluster.admin() as admin:
        await admin.create_partitions("users", 4)
        await table._producer._cluster.metadata.refresh(5000)
        await table._producer.partitions_for("users")
        await table.put(moved, b"new")
        assert table.get(moved) == b"new"
        assert len(table) == 100
        assert (await contents(cluster))[moved] == b"new"
        await table.delete(moved)
        assert moved not in table
        assert moved not in await contents(cluster)


async def test_value_does_not_go_back_when_partitions_are_added_twice(cluster: Cluster) -> None:
    """The key moves to another partition and back. An old record that is still there would become the current one again."""
    await cluster.create_topic("grows", partitions=1, cleanup_policy="compact")
    keys = (b"key-%d" % n for n in range(1000))
    key = next(key for key in keys if (partition_for_key(key, 2), partition_for_key(key, 3)) == (1, 0))
    async with cluster.admin() as admin:
        for count in (2, 3):
            async with table_of(cluster, "grows") as table:
                await table.put(key, b"%d" % count)
            await admin.create_partitions("grows", count)
    assert await contents(cluster, "grows") == {key: b"3"}


async def test_recreated_topic_replaces_the_contents(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (metadata_updater, topic_tracker):
        monkeypatch.setattr(module, "MISSING_TOPIC_GRACE_MS", 100)
    await fill(cluster, 0, 10)
    async with table_of(cluster) as table, cluster.admin() as admin:
        await admin.delete_topics(["users"])
        await admin.create_topics([NewTopic("users", 2, 1)])
        async with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
            await producer.send_and_wait("users", b"new", b"a", partition=1)
        changes = table.watch()
        await admin.describe_topics(["users"])
        await until(lambda: dict(table.items()) == {b"a": b"new"})
        seen = {(await anext(changes)).key for _ in range(11)}
        assert seen == {b"a", *(b"key-%d" % n for n in range(10))}


async def test_condition_does_not_hold_in_a_recreated_topic(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log of the recreated topic may end where the old one did. The old version says nothing of the new topic's keys: a
    program that has held a lock would write as if it still had it."""
    for module in (metadata_updater, topic_tracker):
        monkeypatch.setattr(module, "MISSING_TOPIC_GRACE_MS", 100)
    async with table_of(cluster) as table, cluster.admin() as admin:
        version = await table.put(b"lock", b"mine")
        await admin.delete_topics(["users"])
        await admin.create_topics([NewTopic("users", 1, 1)])
        async with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
            await producer.send_and_wait("users", b"1", b"other")
        with pytest.raises(VersionConflict, match="but there is none"):
            await table.put(b"lock", b"still mine", expect=version)
        assert dict(table.items()) == {b"other": b"1"}
        assert await table.put(b"lock", b"mine", expect=None) == 1


async def test_position_outside_the_log_reloads_the_partition(cluster: Cluster) -> None:
    await fill(cluster, 0, 300)
    async with table_of(cluster) as table:
        table._consumer.seek(("users", 0), 100_000)
        await until(lambda: table.metrics()["reloads"] == 1)
        await table.caught_up()
        assert len(table) == 100
        assert await table.put(b"key-1", b"x") == 300


# -- snapshots ----------------------------------------------------------------------------------------------------------------


async def test_snapshot_saves_reading(cluster: Cluster, tmp_path: Path) -> None:
    await fill(cluster, 0, 300)
    async with table_of(cluster, snapshot_dir=str(tmp_path)) as table:
        assert table.metrics()["records"] == 300
    await fill(cluster, 300, 310)
    async with table_of(cluster, snapshot_dir=str(tmp_path)) as table:
        assert table.metrics()["records"] == 10
        assert dict(table.items()) == await contents(cluster)
        assert await table.put(b"key-1", b"x", expect=table.version(b"key-1")) == 310


@pytest.mark.parametrize("damage", ["cut", "flipped", "foreign", "recreated", "trimmed"])
async def test_snapshot_that_does_not_fit_is_rejected(cluster: Cluster, tmp_path: Path, damage: str) -> None:
    await fill(cluster, 0, 300)
    async with table_of(cluster, snapshot_dir=str(tmp_path)):
        pass
    (file,) = tmp_path.iterdir()
    data = file.read_bytes()
    if damage in ("cut", "flipped", "foreign"):
        file.write_bytes({"cut": data[:1000], "flipped": data[:999] + b"?" + data[1000:], "foreign": b"hello"}[damage])
    async with cluster.admin() as admin:
        if damage == "recreated":
            await admin.delete_topics(["users"])
            await admin.create_topics([NewTopic("users", 1, 1)])
            await fill(cluster, 0, 5)
        if damage == "trimmed":
            await fill(cluster, 300, 310)
            await admin.delete_records({TopicPartition("users", 0): 305})
    with capture_logs() as lines:
        async with table_of(cluster, snapshot_dir=str(tmp_path)) as table:
            assert dict(table.items()) == await contents(cluster)
    assert [line["event"] for line in lines if line["event"].startswith("table.snapshot")] == ["table.snapshot_rejected"]
    async with table_of(cluster, snapshot_dir=str(tmp_path)) as table:
        assert table.metrics()["records"] == 0, "the next snapshot has replaced it"


async def test_rows_that_were_trimmed_are_not_in_a_snapshot_either(cluster: Cluster, tmp_path: Path) -> None:
    await fill(cluster, 0, 100)
    async with table_of(cluster, snapshot_dir=str(tmp_path)), cluster.admin() as admin:
        await admin.delete_records({TopicPartition("users", 0): 60})
    async with table_of(cluster, snapshot_dir=str(tmp_path)) as table:
        assert (len(table), table.metrics()["records"]) == (40, 0)


async def test_snapshots_are_written_while_the_table_runs(cluster: Cluster, tmp_path: Path) -> None:
    """So a program that is killed has a snapshot, too."""
    await fill(cluster, 0, 100)
    async with table_of(cluster, snapshot_dir=str(tmp_path), snapshot_interval_ms=1) as table:
        await until(lambda: table.metrics()["snapshots"] > 0)
        assert (tmp_path / "users-0.table").stat().st_size > 1000


async def test_table_works_without_its_disk(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with capture_logs() as lines:
        async with table_of(cluster, snapshot_dir=str(tmp_path / "file")) as table:
            await table.put(b"a", b"1")
    assert [line["event"] for line in lines if line["event"].startswith("table.snapshot_f")] == ["table.snapshot_failed"]


# -- tombstones that are gone -------------------------------------------------------------------------------------------------


async def test_deleted_key_does_not_come_back_from_a_snapshot(cluster: Cluster, tmp_path: Path) -> None:
    """The cleaner has removed the value and the tombstone while the table did not run. If the table read on from its snapshot, it
    would see neither."""
    topic = await cluster.create_topic(
        "cleaned",
        cleanup_policy="compact",
        delete_retention_ms=0,
        segment_bytes=1000,
        min_cleanable_dirty_ratio=0.01,
        min_compaction_lag_ms=0,
    )
    async with table_of(cluster, topic, snapshot_dir=str(tmp_path)) as table:
        await table.put(b"deleted", b"1")
        await table.put(b"kept", b"1")
    async with Producer(bootstrap_servers=cluster.bootstrap_servers, linger_ms=0) as producer:
        await producer.send_and_wait(topic, None, b"deleted")
        async with asyncio.timeout(10):
            while any(record.key == b"deleted" for record in await cluster.read_all(topic)):
                await producer.send_and_wait(topic, bytes(500), b"other")
    async with table_of(cluster, topic, snapshot_dir=str(tmp_path)) as table:
        assert set(table) == {b"kept", b"other"}


@pytest.mark.parametrize(("later_ms", "read"), [(DAY_MS // 2, 0), (DAY_MS, 300), (-1000, 300)])
async def test_snapshot_is_used_while_tombstones_are_kept(cluster: Cluster, tmp_path: Path, later_ms: int, read: int) -> None:
    await fill(cluster, 0, 300)
    clock = Clock()
    async with table_of(cluster, snapshot_dir=str(tmp_path), doors=clock.doors):
        pass
    clock.now_ms += later_ms
    with capture_logs() as lines:
        async with table_of(cluster, snapshot_dir=str(tmp_path), doors=clock.doors) as table:
            assert table.metrics()["records"] == read
            assert len(table) == 100
    reasons = [line["reason"] for line in lines if line["event"] == "table.snapshot_rejected"]
    assert ["tombstones" in reason for reason in reasons] == [True] * bool(read)


async def test_table_that_was_cut_off_for_too_long_reads_again(cluster: Cluster) -> None:
    """A suspended laptop continues where it was, and may have missed tombstones."""
    await fill(cluster, 0, 300)
    clock = Clock()
    async with table_of(cluster, doors=clock.doors) as table:
        clock.now_ms += DAY_MS // 2
        await table.caught_up()
        assert table.metrics()["reloads"] == 0
        clock.now_ms += DAY_MS
        await table.caught_up()
        await until(lambda: table.metrics()["records"] == 600)
        assert table.metrics()["reloads"] == 1
        assert len(table) == 100


async def test_table_whose_clock_was_set_back_reads_again_once(cluster: Cluster) -> None:
    """Without a time to compare with, nothing would notice for three days that the table was cut off. A small step is no reason
    to read the topic again."""
    await fill(cluster, 0, 300)
    clock = Clock()
    async with table_of(cluster, doors=clock.doors) as table:
        await table.caught_up()
        clock.now_ms -= 200
        await table.caught_up()
        assert table.metrics()["reloads"] == 0
        clock.now_ms -= 3 * DAY_MS
        for _ in range(2):
            await table.caught_up()
            await until(lambda: table.health()["state"] == "ok")
        assert table.metrics()["reloads"] == 1
        assert len(table) == 100


@pytest.mark.parametrize("kept_ms", [0, 1000, 4999])
async def test_table_makes_progress_if_tombstones_are_kept_briefly(cluster: Cluster, kept_ms: int) -> None:
    """Each check that the table was up to date restarted it, so it read the topic twice a second. A table that was really cut off
    may have missed tombstones."""
    topic = await cluster.create_topic("brief", cleanup_policy="compact", delete_retention_ms=kept_ms)
    await fill(cluster, 0, 100, topic)
    clock = Clock()
    async with table_of(cluster, topic, doors=clock.doors) as table:
        for _ in range(3):
            clock.now_ms += 4000
            await table.caught_up()
        assert table.metrics()["reloads"] == 0
        clock.now_ms += 5000
        await table.caught_up()
        assert table.metrics()["reloads"] == 1
        await until(lambda: table.health()["state"] == "ok")
        assert len(table) == 100


async def test_topic_that_is_not_compacted_is_reported(cluster: Cluster) -> None:
    """Its records are deleted after `retention.ms`, also the only one of a key."""
    await cluster.create_topic("plain", cleanup_policy="delete")
    with capture_logs() as lines:
        await contents(cluster, "plain")
    assert "table.topic_not_compacted" in [line["event"] for line in lines]
