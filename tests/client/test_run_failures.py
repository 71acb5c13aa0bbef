"""`Consumer.run` and records whose handler fails: retries here and by a topic, dead letters, and records that are left out."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from structlog.testing import capture_logs
from waiting import until

from strandline.client import Backoff, ConsumerRecord, HandlerFailed, Producer, attempt_of
from strandline.client.consumer.run import headers
from strandline.client.errors import DeliveryFailed, UsageError
from strandline.protocol.errors import ErrorCode

from .group_world import member
from .run_world import DEAD, RETRY, Seen, cluster_with, origins, place, records_of, running

QUICK = Backoff(first_ms=5, factor=1, attempts=3, jitter=0)


class Failing:
    """A handler that fails for some values, a given number of times each."""

    def __init__(self, times: dict[bytes, int], error: type[Exception] = KeyError) -> None:
        self.left = Counter(times)
        self.error = error
        self.attempts: list[tuple[bytes, int]] = []
        """The value and attempt number of each attempt."""
        self.done: list[bytes] = []

    async def handle(self, record: ConsumerRecord) -> None:
        self.attempts.append((record.value, attempt_of(record)))
        if self.left[record.value]:
            self.left[record.value] -= 1
            raise self.error(record.value)
        self.done.append(record.value)

    async def handle_batch(self, records: list[ConsumerRecord]) -> None:
        for record in records:
            await self.handle(record)


ALWAYS = 1_000


# -- handlers that cannot work -----------------------------------------------------------------------------------------


async def no_argument() -> None:
    pass


async def two_arguments(record: ConsumerRecord, session: object) -> None:
    pass


async def asynchronous_generator(record: ConsumerRecord) -> Any:
    yield record


def generator(record: ConsumerRecord) -> Any:
    yield record


@pytest.mark.parametrize(
    "wrong", [None, "handle", no_argument, two_arguments, asynchronous_generator, generator, asyncio.sleep(0)]
)
async def test_handler_that_cannot_work_is_refused(wrong: Any) -> None:
    """A handler that cannot be called used to put every record of the topic into the dead-letter topic. One with a `yield` ran
    nothing, and every record was committed as finished."""
    async with cluster_with("a") as (cluster, groups), member(cluster) as consumer:
        with pytest.raises(UsageError, match="handler"):
            await asyncio.wait_for(consumer.run(wrong, dlq=DEAD), 5)
        assert not records_of(cluster, DEAD)
        assert not groups.committed
    if asyncio.iscoroutine(wrong):
        wrong.close()


async def test_generator_that_a_handler_returns_has_failed() -> None:
    """A lambda or a decorator hides the `yield` from the check of the handler."""
    async with cluster_with("a") as (cluster, _), running(cluster, lambda record: asynchronous_generator(record)) as (_, run):
        with pytest.raises(HandlerFailed, match="nothing of that has run"):
            await asyncio.wait_for(run, 5)


# -- without anything -------------------------------------------------------------------------------------------------


async def test_run_ends_with_the_error_by_default() -> None:
    """The record stays uncommitted, and so do those behind it: nothing is swallowed."""
    failing = Failing({b"0:2": 1})
    async with cluster_with("abcd") as (cluster, groups), member(cluster) as consumer:
        with pytest.raises(HandlerFailed) as caught:
            await consumer.run(failing.handle)
        error = caught.value
        assert (error.topic, error.partition, error.offset, error.attempts) == ("orders", 0, 2, 1)
        assert isinstance(error.__cause__, KeyError)
        assert "KeyError" in str(error)
        assert "offset 2" in str(error)
        assert groups.offset("orders") == 2
        assert (await consumer.getone()).offset == 2


async def test_other_calls_finish_when_one_ends_the_run() -> None:
    begun, go_on, done = asyncio.Event(), asyncio.Event(), []

    async def handle(record: ConsumerRecord) -> None:
        if record.partition == 0:
            await begun.wait()
            raise KeyError
        begun.set()
        await go_on.wait()
        done.append(place(record))

    async with cluster_with("ab", "ab") as (cluster, groups), running(cluster, handle) as (consumer, task):
        await until(lambda: consumer.health()["run"]["state"] == "ending")
        assert not task.done()
        go_on.set()
        with pytest.raises(HandlerFailed):
            await task
    assert done == [(1, 0)]
    assert [groups.offset("orders", index) for index in (0, 1)] == [0, 1]


async def test_failed_records_are_left_out_if_wanted() -> None:
    failing = Failing({b"0:1": ALWAYS})
    with capture_logs() as logs:
        async with cluster_with("abc") as (cluster, groups), running(cluster, failing.handle, on_failure="skip") as (consumer, _):
            await until(lambda: failing.done == [b"0:0", b"0:2"])
            assert consumer.metrics()["run"]["skipped"] == 1
        assert groups.offset("orders") == 3
    (line,) = [line for line in logs if line["event"] == "consumer.record_skipped"]
    assert (line["topic"], line["offset"], line["reason"]) == ("orders", 1, "KeyError: b'0:1'")


async def test_handler_that_cancels_itself_has_failed() -> None:
    """A library that was cancelled inside raises CancelledError, although the run was not cancelled."""

    async def handle(record: ConsumerRecord) -> None:
        raise asyncio.CancelledError

    async with cluster_with("abc") as (cluster, _), member(cluster) as consumer:
        with pytest.raises(HandlerFailed, match="CancelledError"):
            await consumer.run(handle)


async def test_plain_handlers_fail_as_others_do() -> None:
    """This includes StopIteration, which a future cannot hold."""

    def handle(record: ConsumerRecord) -> None:
        next(iter([]))

    async with cluster_with("abc") as (cluster, _), member(cluster) as consumer:
        with pytest.raises(HandlerFailed, match="StopIteration"):
            await consumer.run(handle)


# -- retries in place -------------------------------------------------------------------------------------------------


async def test_failed_record_is_handled_again_before_those_behind_it() -> None:
    failing = Failing({b"0:1": 2})
    async with cluster_with("abc") as (cluster, groups), running(cluster, failing.handle, retry=QUICK):
        await until(lambda: len(failing.done) == 3)
    assert failing.attempts == [(b"0:0", 1), (b"0:1", 1), (b"0:1", 2), (b"0:1", 3), (b"0:2", 1)]
    assert groups.offset("orders") == 3


async def test_other_keys_go_on_while_one_waits() -> None:
    failing, slow = Failing({b"0:0": 1}), Backoff(first_ms=200, jitter=0)
    async with (
        cluster_with("abba") as (cluster, _),
        running(cluster, failing.handle, retry=slow, concurrency="key") as (consumer, _),
    ):
        await until(lambda: failing.done == [b"0:1", b"0:2"])
        metrics = consumer.metrics()["run"]
        assert (metrics["delayed"], metrics["retried"], metrics["failed_attempts"]) == (1, 1, 1)
        await until(lambda: failing.done == [b"0:1", b"0:2", b"0:0", b"0:3"])


async def test_last_attempt_is_followed_by_the_dead_letter() -> None:
    failing = Failing({b"0:0": ALWAYS})
    async with (
        cluster_with("ab") as (cluster, groups),
        running(cluster, failing.handle, retry=QUICK, dlq=DEAD) as (consumer, _),
    ):
        await until(lambda: failing.done == [b"0:1"])
        assert consumer.metrics()["run"]["dead_lettered"] == 1
    assert [attempt for value, attempt in failing.attempts if value == b"0:0"] == [1, 2, 3]
    assert groups.offset("orders") == 2
    (letter,) = records_of(cluster, DEAD)
    fields = dict(letter.headers)
    assert (letter.key, letter.value) == (b"a", b"0:0")
    assert fields[headers.ATTEMPTS] == b"3"
    assert fields[headers.ERROR_TYPE] == b"KeyError"
    assert (fields[headers.TOPIC], fields[headers.PARTITION], fields[headers.OFFSET]) == (b"orders", b"0", b"0")
    assert b"in handle" in (fields[headers.TRACEBACK] or b"")


async def test_some_errors_are_not_tried_again() -> None:
    failing = Failing({b"0:0": ALWAYS}, UnicodeError)
    async with (
        cluster_with("ab") as (cluster, _),
        running(cluster, failing.handle, retry=Backoff(), no_retry=(LookupError, ValueError), dlq=DEAD),
    ):
        await until(lambda: failing.done == [b"0:1"])
    assert failing.attempts[0] == (b"0:0", 1)
    assert len(failing.attempts) == 2


async def test_poison_record_that_cannot_be_deserialized_is_a_dead_letter() -> None:
    """The dead letter has the record's original bytes. `getmany` would raise the error again and again, and read no further."""
    seen: list[int] = []

    def decode(value: bytes) -> int:
        return {b"0:0": 0, b"0:2": 2}[value]

    async def handle(record: ConsumerRecord) -> None:
        seen.append(record.value)

    options = {"value_deserializer": decode, "key_deserializer": bytes.decode}
    async with cluster_with("abc") as (cluster, groups), running(cluster, handle, options, retry=Backoff(), dlq=DEAD):
        await until(lambda: seen == [0, 2])
    (letter,) = records_of(cluster, DEAD)
    assert (letter.key, letter.value) == (b"b", b"0:1")
    assert dict(letter.headers)[headers.ERROR_TYPE] == b"KeyError"
    assert groups.offset("orders") == 3


async def test_batch_that_fails_is_divided_to_find_the_record() -> None:
    """The other records of the batch do not become dead letters."""
    failing = Failing({b"0:2": ALWAYS})
    async with (
        cluster_with("abcde") as (cluster, groups),
        running(cluster, failing.handle_batch, batch_size=4, dlq=DEAD) as (consumer, _),
    ):
        await until(lambda: consumer.metrics()["run"]["in_flight"] == 0 and b"0:4" in failing.done)
    assert origins(cluster, DEAD) == [b"0:2"]
    assert set(failing.done) == {b"0:0", b"0:1", b"0:3", b"0:4"}
    assert groups.offset("orders") == 5


async def test_failures_are_logged_once_a_minute_for_each_partition() -> None:
    """A broken handler must not fill the disk with its log."""
    failing = Failing({b"0:%d" % offset: ALWAYS for offset in range(5)})
    with capture_logs() as logs:
        async with cluster_with("abcde") as (cluster, _), running(cluster, failing.handle, dlq=DEAD) as (consumer, _):
            await until(lambda: consumer.metrics()["run"]["dead_lettered"] == 5)
    lines = [line for line in logs if line["event"] == "consumer.handler_failed"]
    assert [(line["topic"], line["offset"], line["attempt"], line["reason"]) for line in lines] == [
        ("orders", 0, 1, "KeyError: b'0:0'")
    ]


# -- the retry topic --------------------------------------------------------------------------------------------------


async def test_retry_topic_holds_nothing_up() -> None:
    """Later records of the partition are handled meanwhile, and the offset moves on."""
    failing, slow = Failing({b"0:0": 1}), Backoff(first_ms=200, jitter=0)
    async with (
        cluster_with("ab") as (cluster, groups),
        running(cluster, failing.handle, {"auto_commit_interval_ms": 10}, retry=slow, retry_topic=RETRY),
    ):
        await until(lambda: failing.done == [b"0:1"])
        await until(lambda: groups.offset("orders") == 2)
        assert b"0:0" not in failing.done
        await until(lambda: failing.done == [b"0:1", b"0:0"])
    assert failing.attempts == [(b"0:0", 1), (b"0:1", 1), (b"0:0", 2)]
    assert groups.offset(RETRY) == 1


async def test_record_is_not_handled_before_its_time() -> None:
    failing, times = Failing({b"0:0": 2}), []

    async def handle(record: ConsumerRecord) -> None:
        times.append(asyncio.get_running_loop().time())
        await failing.handle(record)

    backoff = Backoff(first_ms=60, factor=2, jitter=0)
    async with cluster_with("a") as (cluster, _), running(cluster, handle, retry=backoff, retry_topic=RETRY):
        await until(lambda: failing.done == [b"0:0"])
    first, second, third = times
    assert second - first >= 0.058
    assert third - second >= 0.118


async def test_handler_gets_the_record_as_it_was_at_its_origin() -> None:
    """Topic, partition and offset are the same in each attempt: with them a handler recognises a record that it has handled
    before."""
    failing, seen = Failing({b"1:0": 1}), []

    async def handle(record: ConsumerRecord) -> None:
        seen.append((record.topic, record.partition, record.offset, record.timestamp_ms))
        await failing.handle(record)

    async with cluster_with("", "a") as (cluster, _), running(cluster, handle, retry=QUICK, retry_topic=RETRY):
        await until(lambda: failing.done == [b"1:0"])
    assert seen == [("orders", 1, 0, 1_700_000_000_000)] * 2


async def test_short_delays_do_not_wait_behind_long_ones() -> None:
    """Two records in one partition of the retry topic, the first of which waits for a minute."""
    failing = Failing({b"0:1": 1})
    async with (
        cluster_with("") as (cluster, _),
        Producer(bootstrap_servers=cluster.bootstrap) as producer,
    ):
        record = ConsumerRecord("orders", 0, 0, 0, b"a", b"0:0", (), 0)
        now_ms = producer._doors.wall_clock_ms()
        fields = headers.retry_headers(record, "g", KeyError(), 2, now_ms + 60_000)
        await producer.send_and_wait(RETRY, b"0:0", key=b"a", headers=fields)
        await producer.send_and_wait("orders", b"0:0", partition=0)
        await producer.send_and_wait("orders", b"0:1", partition=0)
        async with running(cluster, failing.handle, retry=QUICK, retry_topic=RETRY) as (consumer, _):
            await until(lambda: failing.done == [b"0:0", b"0:1"])
            assert consumer.metrics()["run"]["delayed"] == 1


async def test_time_of_a_record_is_believed_only_up_to_the_longest_delay() -> None:
    """The clock of the member that wrote it may be wrong."""
    failing, quick = Failing({}), Backoff(first_ms=5, max_ms=20)
    record = ConsumerRecord("orders", 0, 0, 0, b"a", b"0:0", (), 0)
    async with cluster_with("") as (cluster, _), Producer(bootstrap_servers=cluster.bootstrap) as producer:
        fields = headers.retry_headers(record, "g", KeyError(), 2, producer._doors.wall_clock_ms() + 3_600_000)
        await producer.send_and_wait(RETRY, b"0:0", headers=fields)
        async with running(cluster, failing.handle, retry=quick, retry_topic=RETRY):
            await until(lambda: failing.done == [b"0:0"])


async def test_last_attempt_from_the_retry_topic_is_followed_by_the_dead_letter() -> None:
    failing = Failing({b"0:0": ALWAYS})
    async with (
        cluster_with("a") as (cluster, groups),
        running(cluster, failing.handle, retry=QUICK, retry_topic=RETRY, dlq=DEAD) as (consumer, _),
    ):
        await until(lambda: consumer.metrics()["run"]["dead_lettered"] == 1)
    assert failing.attempts == [(b"0:0", 1), (b"0:0", 2), (b"0:0", 3)]
    fields = dict(records_of(cluster, DEAD)[0].headers)
    assert (fields[headers.TOPIC], fields[headers.OFFSET], fields[headers.ATTEMPTS]) == (b"orders", b"0", b"3")
    assert len(records_of(cluster, RETRY)) == 2
    assert (groups.offset("orders"), groups.offset(RETRY)) == (1, 2)


async def test_groups_leave_each_others_records_in_a_shared_retry_topic() -> None:
    failing = Failing({})
    record = ConsumerRecord("orders", 0, 0, 0, b"a", b"theirs", (), 0)
    async with cluster_with("") as (cluster, groups), Producer(bootstrap_servers=cluster.bootstrap) as producer:
        for group_id, value in (("others", b"theirs"), ("g", b"ours")):
            fields = headers.retry_headers(record, group_id, KeyError(), 2, 0)
            await producer.send_and_wait(RETRY, value, headers=fields)
        await producer.send_and_wait(RETRY, b"of an operator")
        async with running(cluster, failing.handle, retry=QUICK, retry_topic=RETRY) as (consumer, _):
            await until(lambda: failing.done == [b"ours", b"of an operator"])
            assert consumer.metrics()["run"]["of_other_groups"] == 1
        assert groups.offset(RETRY) == 3


async def test_retry_topic_is_subscribed_with_the_callbacks_of_the_program() -> None:
    assigned: list[Any] = []
    async with cluster_with("a") as (cluster, _), member(cluster) as consumer:
        consumer.subscribe("orders", on_assigned=assigned.extend)
        task = asyncio.ensure_future(consumer.run(print, retry=QUICK, retry_topic=RETRY))
        await until(lambda: {tp.topic for tp in assigned} == {"orders", RETRY})
        assert consumer.subscription() == {"orders", RETRY}
        consumer.end_run()
        await task


async def test_retry_topic_is_added_to_a_pattern() -> None:
    failing = Failing({b"0:0": 1})
    async with cluster_with("a") as (cluster, _), member(cluster) as consumer:
        consumer.subscribe(pattern="order.|never")
        task = asyncio.ensure_future(consumer.run(failing.handle, retry=QUICK, retry_topic=RETRY))
        await until(lambda: failing.done == [b"0:0"])
        consumer.end_run()
        await task


async def test_retry_topic_needs_a_subscription() -> None:
    async with cluster_with("a") as (cluster, _), member(cluster) as consumer:
        await consumer.assign([("orders", 0)])
        with pytest.raises(UsageError, match="subscription"):
            await consumer.run(print, retry=QUICK, retry_topic=RETRY)


# -- sending fails ----------------------------------------------------------------------------------------------------


async def test_record_is_committed_after_its_dead_letter_is_acknowledged() -> None:
    failing = Failing({b"0:0": ALWAYS})
    async with cluster_with("ab") as (cluster, groups):
        cluster.produce_fate = lambda broker_id, key: "NOT_ENOUGH_REPLICAS"
        async with running(cluster, failing.handle, {"auto_commit_interval_ms": 10}, dlq=DEAD):
            await until(lambda: len(cluster.produce_requests) >= 2)
            await until(lambda: len(groups.commits) >= 1)
            assert groups.offset("orders") in (None, 0)
            assert failing.done == []
            cluster.produce_fate = lambda broker_id, key: "ok"
            await until(lambda: groups.offset("orders") == 2)
        assert origins(cluster, DEAD) == [b"0:0"]


async def test_dead_letter_that_is_refused_ends_the_run() -> None:
    """The record is not committed; otherwise it would be lost."""
    failing = Failing({b"0:0": ALWAYS})
    async with cluster_with("ab") as (cluster, groups), member(cluster) as consumer:
        cluster.produce_fate = lambda broker_id, key: "INVALID_RECORD"
        with pytest.raises(HandlerFailed, match=f"not delivered to {DEAD}") as caught:
            await consumer.run(failing.handle, dlq=DEAD)
        assert isinstance(caught.value.__cause__, DeliveryFailed)
    assert groups.offset("orders") == 0


async def test_dead_letter_that_is_too_large_is_sent_without_the_traceback() -> None:
    failing, sizes = Failing({b"0:0": ALWAYS}), []

    def fate(broker_id: int, key: object) -> str:
        sizes.append(len(cluster.produce_requests[-1][0][1]))
        return "ok" if len(sizes) > 1 else ErrorCode.MESSAGE_TOO_LARGE.name

    async with cluster_with("ab") as (cluster, _):
        cluster.produce_fate = fate
        async with running(cluster, failing.handle, dlq=DEAD):
            await until(lambda: failing.done == [b"0:1"])
        (letter,) = records_of(cluster, DEAD)
        assert headers.ERROR_TYPE in dict(letter.headers)
        assert headers.TRACEBACK not in dict(letter.headers)


async def test_program_may_pass_its_own_producer() -> None:
    failing = Failing({b"0:0": ALWAYS})
    async with cluster_with("ab") as (cluster, _), Producer(bootstrap_servers=cluster.bootstrap) as producer:
        async with running(cluster, failing.handle, dlq=DEAD, producer=producer):
            await until(lambda: failing.done == [b"0:1"])
        assert producer.metrics()["records"] == 1
        await producer.send_and_wait(DEAD, b"it still runs")


@pytest.mark.parametrize(("options", "text"), [({"acks": 1}, "acks"), ({"value_serializer": str.encode}, "serializers")])
async def test_producers_that_may_lose_or_change_records_are_refused(options: dict[str, Any], text: str) -> None:
    async with cluster_with("a") as (cluster, _), member(cluster) as consumer:
        with pytest.raises(UsageError, match=text):
            await consumer.run(print, dlq=DEAD, producer=Producer(**options))


async def test_run_without_failures_sends_nothing() -> None:
    seen: Seen = []

    async def handle(record: ConsumerRecord) -> None:
        seen.append(place(record))

    async with cluster_with("ab") as (cluster, _):
        async with running(cluster, handle, retry=QUICK, retry_topic=RETRY, dlq=DEAD):
            await until(lambda: len(seen) == 2)
        assert cluster.produce_requests == []
