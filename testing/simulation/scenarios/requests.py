"""Fetch sessions, the purgatory, and the deletion of topics and records: S29 to S37."""

from __future__ import annotations

import asyncio

from strandline.broker.partition.partition import FetchPosition, Partition
from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.data import DeleteRecordsPartition, DeleteRecordsRequest, FetchPartitionResponse
from strandline.testing.simulation.scenarios.stage import Stage, scenario


@scenario("S29", "A fetch session forgets the leader epoch", source="KAFKA-9338, KIP-227")
async def s29(stage: Stage) -> None:
    """A session remembers the leader epoch of each partition. If the broker leads in a later epoch since, the fetcher must be
    notified, even if its request does not mention the partition."""
    await stage.open(replicas=[[1, 2, 3], [1, 2, 3]])
    await stage.append(2, index=0)
    await stage.append(2, index=1)
    epoch = stage.registration(0).leader_epoch
    stage.says("A session is opened at broker 1 for both partitions.")
    opened = await stage.fetch_session(1, 0, 0, [(0, 0, epoch), (1, 0, epoch)])
    stage.must(opened.session_id and not opened.error_code, "there is a session")
    stage.says("Broker 1 is cut off and loses both; then broker 2 dies, and broker 1 leads them again, two epochs later.")
    stage.cut(1, [2, 3, 101])
    await stage.until(lambda: stage.leader() == 2, what="broker 2 leads")
    stage.mend(1, [2, 3, 101])
    await stage.until(lambda: stage.isr(0) >= {1, 2} and stage.isr(1) >= {1, 2}, what="broker 1 is back in both ISRs")
    stage.crash(2)
    await stage.until(lambda: all(stage.leader(i) == 1 and stage.leads(1, i) for i in (0, 1)), what="broker 1 leads again")
    stage.says("A fetch of a follower that is still in the first epoch arrives.")
    late = await stage.fetch_as(3, 1, 2, epoch)
    stage.must(
        late.error_code == ErrorCode.FENCED_LEADER_EPOCH, f"it does not count as progress: {ErrorCode(late.error_code).name}"
    )
    stage.says("The session continues with the second partition only, in its new epoch.")
    now = stage.registration(1).leader_epoch
    answer = await stage.fetch_session(1, opened.session_id, 1, [(1, 2, now)])
    codes = {p.partition: ErrorCode(p.error_code).name for p in answer.partitions}
    stage.must(
        answer.error_code or codes.get(0) == "FENCED_LEADER_EPOCH",
        f"the first partition is answered FENCED_LEADER_EPOCH: {codes}, {ErrorCode(answer.error_code).name}",
    )
    stage.start(2)
    await stage.at_rest(index=0)
    await stage.at_rest(index=1)


@scenario("S30", "Fetch sessions evict each other", source="KAFKA-8052")
async def s30(stage: Stage) -> None:
    """More sessions than the cache has room for are used in turn. A client whose session was evicted must get an error, or one of
    its partitions is silently no longer replicated."""
    await stage.open(replicas=[[1, 2, 3]] * 4, settings={"max.incremental.fetch.session.cache.slots": 2})
    stage.says("Five consumers and two followers share two slots.")
    sessions = dict.fromkeys(range(5), (0, 0))
    for turn in range(8):
        await stage.append(1, index=turn % 4)
        for n, (session_id, session_epoch) in sessions.items():
            wanted = [(index, 0, -1) for index in range(4)] if session_epoch == 0 else []
            answer = await stage.fetch_session(1, session_id, session_epoch, wanted)
            if answer.error_code:
                lost = answer.error_code in (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH)
                stage.must(lost, f"a fetch without its session is rejected: {ErrorCode(answer.error_code).name}")
                sessions[n] = (0, 0)
            elif answer.session_id:
                sessions[n] = (answer.session_id, session_epoch + 1)
    stage.says("The followers have every partition.")
    for index in range(4):
        await stage.at_rest(index=index, within_s=10.0)


@scenario("S31", "A consumer reads from a follower", source="KIP-392, KAFKA-15390, KAFKA-14372")
async def s31(stage: Stage) -> None:
    """A follower serves only records below the high watermark that it knows, and completes waiting fetches when this rises."""
    await stage.open(replicas=[1, 2, 3])
    await stage.append(5)
    await stage.until(lambda: stage.hw(2) == 5, what="broker 2 has HW 5")
    stage.says("One more is on all replicas and acknowledged, but broker 2 still has HW 5.")
    held = stage.hold("Fetch", source=1, target=2, response=True, where=lambda m: stage.end(2) == 6)
    await stage.append(1)
    _, read = await stage.fetch(2, 4)
    stage.must([offset for offset, _ in read] == [4], "a consumer at broker 2 reads up to its HW, not to its end")
    answer, read = await stage.fetch(2, 5)
    stage.must(not answer.error_code and not read, "and at 5 nothing yet; but 5 is not out of range")
    stage.says("A consumer waits there. Broker 2 gets the HW.")
    waiting = asyncio.get_running_loop().create_task(stage.fetch(2, 5, max_wait_ms=30_000))
    await stage.sleep(0.05)
    stage.must(not waiting.done(), "it waits")
    held.release()
    await stage.until(waiting.done, 1.0, "the consumer gets a response when broker 2's HW advances")
    stage.must([offset for offset, _ in waiting.result()[1]] == [5], "it has read offset 5")
    await stage.at_rest()


@scenario("S32", "The HW advances while a produce request is being parked", source="the purgatory's own race")
async def s32(stage: Stage) -> None:
    """Between the check whether a write is committed and the start of its wait, the write may become committed. No write may wait
    for its time-out because of that."""
    await stage.open(replicas=[1, 2, 3])
    stage.says("Three hundred writes, at moments that have nothing to do with the followers' fetches.")
    random = stage.world.stream("s32")
    slowest = 0.0
    for n in range(100):
        began = stage.world.now
        writes = []
        for k in range(3):
            writes.append(stage.start_produce(1, b"s32-%d-%d" % (n, k)))
            await asyncio.sleep(random.random() * 0.001)
        for write in writes:
            answer = await write
            stage.must(not answer.error_code, f"write {n} is acknowledged")
        slowest = max(slowest, stage.world.now - began)
    stage.must(slowest < 1.0, f"none waited for a time-out: the slowest took {slowest:.3f} s")
    await stage.at_rest()


@scenario("S33", "Requests are parked when the leadership, the topic or the process ends", source="KAFKA-9198, KAFKA-10677")
async def s33(stage: Stage) -> None:
    """No request waits for an event that can no longer happen, and none stays in memory."""
    await stage.open(replicas=[1, 2, 3])
    await stage.append(1)

    async def park(note: str) -> tuple[asyncio.Task[object], asyncio.Task[object], float]:
        stage.says(f"A write and a read are parked at broker {stage.leader()}; then {note}.")
        leader, end = stage.leader(), stage.end(stage.leader())
        holds = [stage.hold("Fetch", source=leader, target=n, response=True) for n in (1, 2, 3) if n != leader]
        write = stage.start_produce(leader, b"parked", timeout_ms=60_000)
        read = asyncio.get_running_loop().create_task(_fetch_quietly(stage, leader, end + 1))
        await stage.until(lambda: stage.end(leader) == end + 1, what="the write is appended")
        await stage.sleep(0.05)
        for hold in holds:
            stage.world.network.holds.remove(hold)  # Held messages stay held, later ones pass.
        return write, read, stage.world.now

    async def answered(write: asyncio.Task[object], read: asyncio.Task[object], broker: int, within_s: float) -> None:
        await stage.until(lambda: write.done() and read.done(), within_s, "both are answered")
        replicas = stage.cluster.brokers.get(broker)
        if replicas is not None:
            await stage.until(lambda: len(replicas.replicas.purgatory) <= 2, 2.0, "only followers' fetches are parked there")

    write, read, _ = await park("it is cut off from its peers, and another is elected")
    stage.cut(1, [2, 3, 101])
    await stage.until(lambda: stage.leader() == 2, what="broker 2 leads")
    stage.mend(1, [2, 3, 101])
    await answered(write, read, 1, 10.0)
    stage.world.network.heal()
    await stage.at_rest()

    write, read, _ = await park("the topic is deleted")
    client = stage.client

    async def delete() -> None:
        async with client.admin() as admin:
            await admin.delete_topics(["orders"])

    await client.run(delete())
    stage.topics.remove("orders")
    stage.world.network.heal()
    await answered(write, read, 2, 5.0)
    await stage.create("payments", [[3, 1, 2]])
    stage.topic = "payments"

    write, read, _ = await park("its process is stopped in order")
    stopping = asyncio.get_running_loop().create_task(stage.stop(3))
    await stage.until(lambda: write.done() and read.done(), 15.0, "both are answered, or their connection ends")
    stage.world.network.heal()
    await stopping
    stage.start(3)
    await stage.at_rest()


async def _fetch_quietly(stage: Stage, broker: int, offset: int) -> object:
    try:
        epoch = stage.registration().leader_epoch
        return await stage.fetch(broker, offset, max_wait_ms=50_000, epoch=epoch)
    except BrokerError as e:
        return e


@scenario("S34", "The position of the HW after a roll", source="KAFKA-9196")
async def s34(stage: Stage) -> None:
    """HW and LEO are at the end of a segment when the next one is begun. A file position that was cached for that HW must not
    expose later records of the next segment."""
    await stage.open(replicas=[1, 2, 3], segment_bytes="1024")
    stage.says("Records until a segment is rolled, all committed.")
    while len(stage.replica(1).log.segments) < 2:
        await stage.produce(1, b"x" * 300)
    await stage.until(lambda: stage.hw(1) == stage.end(1), what="HW = LEO")
    at = stage.hw(1)
    stage.says(f"HW = LEO = {at}. One more is appended, and no follower fetches it.")
    holds = [stage.hold("Fetch", source=1, target=n, response=True) for n in (2, 3)]
    await stage.append(1, acks=1)
    answer, read = await stage.fetch(1, at)
    stage.must(not answer.error_code and not read, "a consumer at the HW reads nothing")
    _, read = await stage.fetch(1, at - 1)
    stage.must([offset for offset, _ in read] == [at - 1], "and one before it reads up to it")
    for hold in holds:
        hold.release()
    await stage.at_rest()


@scenario("S35", "A recreated topic of the same name", source="KIP-516")
async def s35(stage: Stage) -> None:
    """A broker was down while its topic was deleted and recreated. Its directory has the right name but the wrong records."""
    await stage.open(replicas=[1, 2, 3])
    await stage.append(5)
    old = stage.cluster.topic_id("orders")
    stage.says("Broker 3 is down while the topic is deleted and created again, and written to.")
    stage.crash(3)
    await stage.until(lambda: stage.isr() == {1, 2}, what="broker 3 is out")
    client = stage.client

    async def delete() -> None:
        async with client.admin() as admin:
            await admin.delete_topics(["orders"])

    await client.run(delete())
    stage.topics.remove("orders")
    stage.acked.clear()
    await stage.create("orders", [[1, 2, 3]], missing=[3])
    new = stage.cluster.topic_id("orders")
    stage.must(new != old, "it has another id")
    await stage.produce(1, b"new")
    stage.says("Broker 3 returns with its five old records.")
    stage.start(3)
    await stage.at_rest()
    stage.must(stage.values(3) == {0: b"new"}, "broker 3 has the new topic's record and none of the old one's")
    stage.must((old, 0) not in stage.cluster.brokers[3].replicas.partitions, "nothing is served under the old id")


@scenario("S36", "Records are deleted while a fetch response is built", source="KAFKA-7104")
async def s36(stage: Stage) -> None:
    """The leader's log start moves after the records of a response were read, and before the response is complete. Then the
    response has a log start beyond its own records, and beyond the follower's log end."""
    await stage.open(replicas=[1, 2], brokers=2, min_insync=1, settings={"replica.fetch.max.bytes": 200})
    await stage.append(5)
    await stage.until(lambda: stage.hw(2) == 5, what="both replicas have HW 5")
    stage.says("Broker 2 dies, and 20 records are written without it. It returns, and fetches a few of them.")
    stage.crash(2)
    await stage.until(lambda: stage.isr() == {1}, what="broker 1 is alone in the ISR")
    await stage.append(20)
    held = stage.hold("Fetch", source=1, target=2, response=True, where=lambda _: stage.end(2) > 5)
    stage.start(2)
    await stage.until(lambda: held.has, what="a response is on its way to broker 2")
    at, starts = stage.end(2), list[int]()
    stage.says(f"Records up to 20 are deleted. The log of broker 2 ends at {at}, and the response is from before the deletion.")
    request = DeleteRecordsRequest([DeleteRecordsPartition(stage.cluster.topic_id("orders"), 0, 20)], 20_000)
    deleting = asyncio.get_running_loop().create_task(stage.ask(1, apis.DELETE_RECORDS, request), name="delete")
    await stage.until(lambda: stage.replica(1).log.log_start_offset == 20, what="the log of broker 1 begins at 20")
    append_fetched = Partition.append_fetched

    def racing(self: Partition, position: FetchPosition, response: FetchPartitionResponse, records: memoryview) -> bool:
        if self.context.broker_id == 2 and not starts:
            response.log_start_offset = 20
        is_new = append_fetched(self, position, response, records)
        starts.append(self.log.log_start_offset)
        return is_new

    def in_order() -> bool:
        log = stage.replica(2).log if stage.has(2) else None
        return log is None or log.log_start_offset <= log.high_watermark <= log.log_end_offset

    stage.always(in_order, "log start <= HW <= LEO on broker 2 at all times (I5)")
    stage.patch(Partition, "append_fetched", racing)
    held.release()
    await stage.until(lambda: starts, what="broker 2 has got the response")
    stage.must(starts[0] == 0 and at < stage.end(2) < 20, "it appends the records, and ignores the log start")
    await stage.until(deleting.done, what="the records are deleted")
    stage.must(deleting.result().partitions[0].low_watermark == 20, "no live replica has one of them")
    await stage.until(lambda: stage.replica(2).log.log_start_offset == 20, what="broker 2 has started over at 20")
    await stage.at_rest((1, 2))


@scenario("S37", "Retention beyond the HW", source="KAFKA-5634")
async def s37(stage: Stage) -> None:
    """Retention deletes old segments by age or size, but never records above the high watermark: these are new."""
    await stage.open(
        replicas=[1, 2, 3],
        segment_bytes="1024",
        retention_bytes="1024",
        settings={"log.retention.check.interval.ms": 500},
    )
    await stage.append(3)
    await stage.until(lambda: stage.hw(2) == 3, what="HW 3")
    stage.says("The followers get no more responses, and several segments of uncommitted records are written.")
    holds = [stage.hold("Fetch", source=1, target=n, response=True) for n in (2, 3)]
    for _ in range(20):
        await stage.produce(1, b"y" * 400, acks=1)
    await stage.until(lambda: stage.hw(1) >= 3, what="HW 3 at the leader")
    await stage.sleep(2.0)
    log = stage.replica(1).log
    stage.must(log.log_start_offset <= log.high_watermark, f"start {log.log_start_offset} <= HW {log.high_watermark}")
    stage.must(log.log_end_offset == 23, "the log end is unchanged")
    stage.says("They are fetched and committed, and then they expire.")
    for hold in holds:
        hold.release()
    await stage.until(lambda: stage.replica(1).log.log_start_offset > 3, 30.0, "old segments are deleted")
    await stage.sleep(2.0)
