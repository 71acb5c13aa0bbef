"""The table without asyncio: the same contents, from any thread."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from strandline import ClientClosed, ClientError, UsageError, VersionConflict
from strandline.sync import Table
from strandline.testing import Cluster, ThreadedCluster


@pytest.fixture(scope="module")
def shared() -> Iterator[ThreadedCluster]:
    with Cluster.running_in_thread(brokers=1) as cluster:
        yield cluster


@pytest.fixture
def topic(shared: ThreadedCluster) -> str:
    return shared.create_topic(partitions=2, cleanup_policy="compact")


def table_of(cluster: ThreadedCluster, topic: str, **options) -> Table[bytes, bytes]:
    return Table(topic, bootstrap_servers=cluster.bootstrap_servers, **options)


def test_table_reads_writes_and_compares(shared: ThreadedCluster, topic: str) -> None:
    with table_of(shared, topic) as table, table_of(shared, topic) as other:
        version = table.put(b"alice", b"tea")
        assert (table.get(b"alice"), table[b"alice"], len(table), b"bob" in table) == (b"tea", b"tea", 1, False)
        assert (table.version(b"alice"), table.get(b"bob", b"?")) == (version, b"?")
        other.caught_up()
        assert (list(other), list(other.values()), dict(other.items())) == ([b"alice"], [b"tea"], {b"alice": b"tea"})
        other.put(b"alice", b"coffee", expect=version)
        with pytest.raises(VersionConflict) as caught:
            table.put(b"alice", b"water", expect=version)
        assert caught.value.value == b"coffee"
        assert table.update(b"alice", lambda value: value and value + b" with milk") == b"coffee with milk"
        table.delete(b"alice")
        with pytest.raises(KeyError):
            table[b"alice"]


def test_threads_that_increment_lose_none(shared: ThreadedCluster, topic: str) -> None:
    def increment() -> None:
        for _ in range(20):
            table.update(b"n", lambda value: b"%d" % (int(value or b"0") + 1))

    with table_of(shared, topic) as table:
        threads = [threading.Thread(target=increment) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert table.get(b"n") == b"60"


def test_watcher_on_another_thread_sees_changes_until_the_table_stops(shared: ThreadedCluster, topic: str) -> None:
    seen, has_seen = [], threading.Event()
    table = table_of(shared, topic)
    table.start()
    changes = table.watch(prefix=b"a")

    def watch() -> None:
        for change in changes:
            seen.append((change.key, change.old, change.new))
            has_seen.set()

    thread = threading.Thread(target=watch)
    thread.start()
    table.put(b"bob", b"1")
    table.put(b"alice", b"2")
    assert has_seen.wait(10)
    table.stop()
    thread.join(10)
    assert not thread.is_alive()
    assert seen == [(b"alice", None, b"2")]
    assert list(changes) == []
    changes.close()


def test_error_of_a_deserializer_comes_on_the_thread_that_asks(shared: ThreadedCluster, topic: str) -> None:
    with table_of(shared, topic) as table:
        table.put(b"alice", b"tea")
    with Table(topic, bootstrap_servers=shared.bootstrap_servers, value_deserializer=int) as broken:
        with pytest.raises(ClientError, match="the deserializer failed for the value b'tea'"):
            broken.get(b"alice")
        values = broken.values()
        with pytest.raises(ClientError, match="the deserializer failed"):
            next(values)


def test_calls_before_start_after_stop_and_in_a_forked_process_say_so(shared: ThreadedCluster, topic: str) -> None:
    table = table_of(shared, topic)
    for call in (lambda: table.get(b"a"), lambda: len(table), lambda: table.put(b"a", b"b"), lambda: table.watch()):
        with pytest.raises(ClientClosed, match="not started"):
            call()
    table.start()
    table.put(b"a", b"b")
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            table.get(b"a")
        except UsageError as e:
            os.write(write, str(e).encode())
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    os.close(write)
    assert b"start another table in the child" in os.read(read, 1000)
    os.close(read)
    table.stop()
    table.stop()
    with pytest.raises(ClientClosed, match="stopped"):
        table.get(b"a")
    with pytest.raises(ClientClosed, match="stopped"):
        table.put(b"a", b"b")
