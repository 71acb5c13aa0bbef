"""The thread of a client without asyncio: forks, interrupts, the end of the process."""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from strandline import ClientClosed, NoBrokersAvailable, UsageError
from strandline.client.sync.loop_thread import LoopThread, wait_for
from strandline.sync import Admin, Consumer, Producer
from strandline.testing import Cluster, ThreadedCluster


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    thread = LoopThread("client")
    yield thread
    thread.close()


@pytest.fixture(scope="module")
def shared() -> Iterator[ThreadedCluster]:
    with Cluster.running_in_thread(brokers=1) as cluster:
        cluster.create_topic("orders")
        yield cluster


def interrupt_soon(condition: threading.Event) -> threading.Thread:
    """Send SIGINT to the main thread, as Ctrl-C does, once the condition holds."""

    def run() -> None:
        assert condition.wait(10)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_result_and_error_come_back(thread: LoopThread) -> None:
    async def fail() -> None:
        raise ValueError("why")

    assert thread.run(asyncio.sleep(0, "done")) == "done"
    assert thread.call(lambda: threading.current_thread().name) == "strandline client"
    with pytest.raises(ValueError, match="why"):
        thread.run(fail())


def test_interrupt_cancels_the_work(thread: LoopThread) -> None:
    """Otherwise a call that the program has given up would continue in the background."""
    has_begun, was_cancelled = threading.Event(), threading.Event()

    async def wait() -> None:
        has_begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            was_cancelled.set()
            raise

    interrupter = interrupt_soon(has_begun)
    with pytest.raises(KeyboardInterrupt):
        thread.run(wait())
    interrupter.join(10)
    assert was_cancelled.wait(10)


def test_close_ends_calls_that_wait(thread: LoopThread) -> None:
    errors: list[BaseException] = []
    has_begun = threading.Event()

    async def wait() -> None:
        has_begun.set()
        await asyncio.Event().wait()

    def call() -> None:
        try:
            thread.run(wait())
        except ClientClosed as e:
            errors.append(e)

    caller = threading.Thread(target=call)
    caller.start()
    assert has_begun.wait(10)
    thread.close()
    caller.join(10)
    assert len(errors) == 1
    with pytest.raises(ClientClosed):
        thread.run(asyncio.sleep(0))


def test_each_client_ends_its_thread(shared: ThreadedCluster) -> None:
    def ours() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name.startswith("strandline ")]

    before = ours()
    for _ in range(3):
        with (
            Producer(bootstrap_servers=shared.bootstrap_servers),
            Consumer("orders", bootstrap_servers=shared.bootstrap_servers),
            Admin(bootstrap_servers=shared.bootstrap_servers),
        ):
            assert len(ours()) == len(before) + 3
    assert ours() == before


def test_failed_start_ends_the_thread() -> None:
    before = threading.active_count()
    for client in (Producer, Consumer, Admin):
        with pytest.raises(NoBrokersAvailable):
            client(bootstrap_servers="127.0.0.1:1", connect_timeout_ms=100).start()
    assert threading.active_count() == before


def test_client_is_started_once(shared: ThreadedCluster) -> None:
    admin = Admin(bootstrap_servers=shared.bootstrap_servers)
    with admin, pytest.raises(UsageError, match="was started before"):
        admin.start()
    admin.stop()
    with pytest.raises(ClientClosed):
        admin.list_topics()


def test_fork_refuses_calls_of_the_child(shared: ThreadedCluster) -> None:
    """The child has a copy of the client without its thread: a call would wait forever, or write into its parent's sockets."""
    bootstrap = shared.bootstrap_servers
    with Producer(bootstrap_servers=bootstrap) as producer, Consumer("orders", bootstrap_servers=bootstrap) as consumer:
        producer.send("orders", b"1")
        receipt = producer.send("orders", b"2")

        def child(out: multiprocessing.connection.Connection) -> None:
            calls = [
                lambda: producer.send("orders", b"3"),
                lambda: producer.send("orders", b"3", key=b"k"),
                lambda: producer.flush(),
                lambda: receipt.on_delivery(print),
                lambda: consumer.getmany(),
                lambda: next(iter(consumer)),
                lambda: consumer.assignment(),
                lambda: consumer.stop(),
                lambda: producer.stop(),
            ]
            for call in calls:
                try:
                    out.send(f"returned {call()!r}")
                except UsageError as e:
                    out.send(str(e))
            out.close()

        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("fork").Process(target=child, args=[theirs])
        process.start()
        theirs.close()
        answers = []
        while ours.poll(10):
            try:
                answers.append(ours.recv())
            except EOFError:
                break
        process.join(10)
        assert process.exitcode == 0
        assert len(answers) == 9
        assert all("before this process was forked" in answer for answer in answers), answers
        assert receipt.result().offset == 1


def test_loop_over_records_ends_in_a_forked_child(shared: ThreadedCluster) -> None:
    """The child used to read on through the rest of the batch, and its parent through the same records."""
    topic = shared.create_topic(partitions=1)
    with Producer(bootstrap_servers=shared.bootstrap_servers) as producer:
        producer.send_many(topic, [b"1", b"2", b"3"]).result()
    with Consumer(topic, bootstrap_servers=shared.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        records = iter(consumer)
        assert next(records).value == b"1"

        def child(out: multiprocessing.connection.Connection) -> None:
            try:
                out.send(f"returned {next(records)!r}")
            except UsageError as e:
                out.send(str(e))

        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("fork").Process(target=child, args=[theirs])
        process.start()
        assert ours.poll(10)
        assert "before this process was forked" in ours.recv()
        process.join(10)
        assert [next(records).value for _ in range(2)] == [b"2", b"3"]


def test_callback_after_stop_is_refused(shared: ThreadedCluster) -> None:
    """The call used to raise a RuntimeError of the event loop."""
    with Producer(bootstrap_servers=shared.bootstrap_servers) as producer:
        receipt = producer.send("orders", b"1")
    with pytest.raises(ClientClosed):
        receipt.on_delivery(print)


PROGRAM = """
import sys
from strandline.sync import Producer
producer = Producer(bootstrap_servers=sys.argv[1])
producer.start()
producer.send("orders", b"1").result()
print("sent")
"""


def test_program_without_stop_ends(shared: ThreadedCluster) -> None:
    """No thread keeps the process alive, and the loop does not run into an interpreter that is torn down."""
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", PROGRAM, shared.bootstrap_servers], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (0, "sent\n", "")
    assert time.monotonic() - began < 15


UNSENT = """
import sys
from strandline.sync import Producer
producer = Producer(bootstrap_servers=sys.argv[1], linger_ms=60_000)
producer.start()
for _ in range(100):
    producer.send(sys.argv[2], b"x")
"""


def test_program_without_stop_delivers_what_it_has_sent(shared: ThreadedCluster) -> None:
    """The last thousands of records used to be lost silently, and only a destroyed task was reported."""
    topic = shared.create_topic(partitions=1)
    program = [sys.executable, "-c", UNSENT, shared.bootstrap_servers, topic]
    done = subprocess.run(program, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")
    with Consumer(bootstrap_servers=shared.bootstrap_servers) as consumer:
        assert consumer.end_offsets([(topic, 0)]) == {(topic, 0): 100}


def test_wait_notices_an_interrupt_within_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal that arrives just before the thread blocks does not wake it. The wait is cut into pieces, so that the next piece
    notices it."""
    future: Future[int] = Future()
    waits = []

    def result(timeout_s: float | None) -> int:
        waits.append(timeout_s)
        if len(waits) == 3:
            raise KeyboardInterrupt
        raise TimeoutError

    monkeypatch.setattr(future, "result", result)
    with pytest.raises(KeyboardInterrupt):
        wait_for(future)
    assert all(timeout_s is not None and timeout_s <= 0.5 for timeout_s in waits)
    assert future.cancelled()


def test_wait_ends_after_its_time_and_passes_on_the_works_own_timeout() -> None:
    future: Future[int] = Future()
    with pytest.raises(TimeoutError):
        wait_for(future, 0.01)
    failed: Future[int] = Future()
    failed.set_exception(TimeoutError("of the work"))
    with pytest.raises(TimeoutError, match="of the work"):
        wait_for(failed)
