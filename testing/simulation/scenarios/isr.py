"""The high watermark, the ISR and AlterPartition: S13 to S24."""

from __future__ import annotations

from strandline.protocol.errors import ErrorCode
from strandline.testing.simulation.kernel.network import Message
from strandline.testing.simulation.scenarios.stage import Stage, scenario


@scenario("S13", "The new leader's HW is behind the true one", source="KIP-207; Vanlightly, section 6.4")
async def s13(stage: Stage) -> None:
    """Followers receive a high watermark one fetch late. So a new leader has committed records above the high watermark that it
    knows. Meanwhile it must not answer to a consumer that records which the consumer has read do not exist."""
    await stage.open(replicas=[1, 2, 3])
    stage.says("Ten records are committed; the followers have them all, but an older HW.")
    await stage.append(7)
    await stage.until(lambda: stage.hw(2) == stage.hw(3) == 7, what="all replicas have HW 7")
    held = stage.hold("Fetch", source=1, response=True, where=lambda m: m.target in (2, 3) and stage.end(m.target) == 10)
    first = stage.start_produce(1, b"a", b"b", b"c")
    await stage.until(first.done, what="the three are acknowledged")
    stage.must(stage.hw(1) == 10 and stage.hw(2) == stage.hw(3) == 7, "the leader's HW is 10, the followers' 7")
    _, read = await stage.fetch(1, 9)
    stage.must([offset for offset, _ in read] == [9], "a consumer has read offset 9")

    stage.says("Broker 1 dies. Broker 2 is elected, and broker 3's fetches do not reach it yet.")
    fetches = stage.hold("Fetch", source=3, target=2)
    stage.crash(1)
    held.release()
    await stage.until(lambda: stage.leader() == 2 and stage.leads(2), what="broker 2 leads")
    stage.must(stage.hw(2) < 10, "it cannot tell yet how much is committed")
    latest = await stage.latest(2)
    known = latest.error_code in (ErrorCode.OFFSET_NOT_AVAILABLE, ErrorCode.LEADER_NOT_AVAILABLE)
    stage.must(known, f"it does not name a latest offset: {ErrorCode(latest.error_code).name} {latest.offset}")
    answer, read = await stage.fetch(2, 10)
    stage.must(answer.error_code != ErrorCode.OFFSET_OUT_OF_RANGE, "a consumer at 10 does not get OFFSET_OUT_OF_RANGE")
    stage.must(not read, "and reads nothing")

    stage.says("Broker 3 fetches from 10: that proves what both have, and the HW is 10.")
    fetches.release()
    await stage.until(lambda: stage.hw(2) == 10, what="the HW is 10 again")
    latest = await stage.latest(2)
    stage.must((latest.error_code, latest.offset) == (0, 10), "now the latest offset is known: 10")
    stage.start(1)
    await stage.at_rest()


@scenario("S14", "A follower joins the ISR before the start of the leader's epoch", source="KAFKA-7128")
async def s14(stage: Stage) -> None:
    """A new leader's high watermark is stale. A follower that has reached it is not in sync yet: it must reach the offset at
    which the leader's epoch began."""
    await stage.open(replicas=[1, 2, 3])
    stage.says("Twelve records are on all replicas. Broker 3 is cut off and leaves the ISR.")
    await stage.append(12)
    await stage.until(lambda: stage.hw(2) == stage.hw(3) == 12, what="all replicas have HW 12")
    stage.cut(3)
    await stage.until(lambda: stage.isr() == {1, 2}, what="broker 3 is out")
    stage.says("Eight more are committed by brokers 1 and 2; broker 2 still has an older HW.")
    held = stage.hold("Fetch", source=1, target=2, response=True, where=lambda m: stage.end(2) == 20)
    await stage.produce(1, *[b"s14-%d" % n for n in range(8)])
    stage.must((stage.hw(1), stage.end(2), stage.hw(2)) == (20, 20, 12), "the true HW is 20, but broker 2 has 12")

    stage.says(
        "Broker 1 dies. Broker 2 leads from offset 20 on. Broker 3 returns and fetches from 12: its own HW, and broker 2's."
    )
    answers = stage.hold("Fetch", source=2, target=3, response=True)
    stage.crash(1)
    held.release()
    await stage.until(lambda: stage.leader() == 2 and stage.leads(2), what="broker 2 leads")
    stage.always(lambda: 3 not in stage.isr() or stage.end(3) >= 20, "broker 3 is in the ISR only with all twenty records (I13)")
    stage.mend(3)
    await stage.until(lambda: answers.has, what="broker 3 has asked, and its answer is held back")
    await stage.sleep(1.0)
    stage.must(stage.isr() == {2}, "broker 3 is not in the ISR")
    stage.says("Broker 3 gets its response, and reaches 20.")
    answers.release()
    await stage.until(lambda: stage.isr() >= {2, 3}, what="broker 3 is in the ISR")
    stage.start(1)
    await stage.at_rest()


@scenario("S15", "The HW moves on a part of the controller's ISR", source="KIP-497, KAFKA-8836")
async def s15(stage: Stage) -> None:
    """The controller has added a replica to the ISR, and the leader has not received the response yet. From then on that replica
    may be elected, so it must have every acknowledged record: the leader counts the replica from the moment of its proposal."""
    await stage.open(replicas=[1, 2, 3])
    stage.says("Broker 3 was cut off and has left the ISR; it returns and catches up.")
    stage.cut(3)
    await stage.until(lambda: stage.isr() == {1, 2}, what="broker 3 is out")
    answers = stage.hold("AlterPartition", target=1, response=True)
    metadata = stage.hold("Fetch", source=101, target=1, response=True, where=lambda m: 3 in stage.isr())
    stage.mend(3)
    await stage.until(lambda: stage.isr() == {1, 2, 3}, what="the controller has committed the expansion")
    stage.must(not stage.knows_isr(1, {1, 2, 3}), "broker 1 has not received it")

    stage.says("Broker 3 stops fetching. Ten records are appended, and fetched by broker 2.")
    silent = stage.hold("Fetch", source=3, target=1)
    parked = stage.hold("Fetch", source=1, target=3, response=True)
    produce = stage.start_produce(1, *[b"s15-%d" % n for n in range(10)])
    await stage.until(lambda: stage.end(2) == 10, what="broker 2 has the ten")
    await stage.sleep(0.5)
    stage.must(stage.hw(1) <= stage.end(3), f"the HW {stage.hw(1)} is not beyond what broker 3 has, {stage.end(3)} (I12)")
    stage.must(not produce.done(), "nothing is acknowledged")

    stage.says("Broker 1 dies. The elected leader has every acknowledged record.")
    stage.crash(1)
    for hold in (answers, metadata, silent, parked):
        hold.release()
    await stage.until(lambda: stage.leader() in (2, 3), what="another leads")
    stage.must(produce.done() and produce.exception(), "the write gets no response")
    stage.start(1)
    await stage.at_rest()


@scenario("S16", "A shrink is in flight", source="KIP-497; the mirror of S15")
async def s16(stage: Stage) -> None:
    """While a shrink is only proposed, the replica may still be elected, so it still counts."""
    await stage.open(replicas=[1, 2, 3], settings={"replica.lag.time.max.ms": 1500})
    stage.says("Five records are on all replicas. Broker 3 stops fetching, and five more are written.")
    await stage.append(5)
    await stage.until(lambda: stage.hw(2) == stage.hw(3) == 5, what="all replicas have HW 5")
    silent = stage.hold("Fetch", source=3, target=1)
    parked = stage.hold("Fetch", source=1, target=3, response=True)
    proposals = stage.hold("AlterPartition", source=1)
    produce = stage.start_produce(1, *[b"s16-%d" % n for n in range(5)])
    await stage.until(lambda: proposals.has, what="broker 1 proposes an ISR without broker 3")
    await stage.until(lambda: stage.end(2) == 10, what="broker 2 has ten records")
    await stage.sleep(0.5)
    stage.must(stage.hw(1) == 5 and not produce.done(), "the HW is 5, and the write is not acknowledged")
    stage.says("The proposal reaches the controller, and is committed.")
    proposals.release()
    await stage.until(lambda: stage.isr() == {1, 2}, what="the shrink is committed")
    await stage.until(produce.done, within_s=1.0, what="the write is acknowledged")
    stage.must(stage.hw(1) == 10 and not produce.result().error_code, "now the HW is 10, and the write a success")
    silent.release()
    parked.release()
    await stage.at_rest()


@scenario("S17", "An AlterPartition response to a previous leadership", source="PartitionTest testAlterIsrNewLeaderElected")
async def s17(stage: Stage) -> None:
    """An AlterPartition response may be older than the leader's metadata. Then the leader ignores it."""
    await stage.open(replicas=[2, 1, 3], settings={"replica.lag.time.max.ms": 1500})
    stage.says("Broker 2 dies, so that broker 1 leads. Broker 2 returns.")
    stage.crash(2)
    await stage.until(lambda: stage.leader() == 1 and stage.leads(1), what="broker 1 leads")
    stage.start(2)
    await stage.until(lambda: stage.isr() == {1, 2, 3}, what="all are in the ISR")
    stage.says("Broker 3 stops fetching, and broker 1 proposes to remove it. The response is held back.")
    silent = stage.hold("Fetch", source=3, target=1)
    parked = stage.hold("Fetch", source=1, target=3, response=True)
    answers = stage.hold("AlterPartition", target=1, response=True, limit=1)
    await stage.append(1, acks=1)
    await stage.until(lambda: stage.isr() == {1, 2} and answers.has, what="the shrink is committed, its answer held")
    stage.says("Broker 2, the preferred one, is elected; then it dies and broker 1 is elected again.")
    client = stage.client

    async def elect() -> None:
        async with client.admin() as admin:
            await admin.elect_leaders()

    await client.run(elect())
    await stage.until(lambda: stage.leader() == 2, what="broker 2 leads")
    silent.release()
    parked.release()
    await stage.until(lambda: stage.isr() >= {1, 2}, what="broker 1 is in the ISR")
    stage.crash(2)
    await stage.until(lambda: stage.leader() == 1, what="broker 1 leads again")
    stage.says("The old response arrives.")
    answers.release()
    await stage.until(lambda: stage.leads(1), what="broker 1 has applied that it leads")
    await stage.sleep(1.0)
    ours, theirs = stage.replica(1), stage.registration()
    stage.must(ours.leader_epoch == theirs.leader_epoch, "broker 1 is in the epoch of the metadata")
    stage.must(ours.partition_epoch == theirs.partition_epoch, "and has its partition epoch")
    stage.start(2)
    await stage.at_rest()

    stage.says("Broker 2's heartbeats get lost. Broker 3 lags, and the proposal of an ISR of 1 and 2 is delayed.")
    stage.cut(2, [101], inbound=False)
    await stage.sleep(0.6)
    silent = stage.hold("Fetch", source=3, target=1)
    parked = stage.hold("Fetch", source=1, target=3, response=True)
    proposals = stage.hold("AlterPartition", source=1, limit=1)
    await stage.append(1, acks=1)
    await stage.until(lambda: proposals.has, what="broker 1 proposes an ISR without broker 3")
    stage.says("Now broker 2 is fenced, and leaves the ISR; 3 fetches again, and what brokers 1 and 3 have is committed.")
    starved = stage.hold("Fetch", source=1, target=2, response=True)
    await stage.until(
        lambda: stage.isr() == {1, 3} and stage.knows_isr(1, {1, 3}), what="broker 2 is out, and broker 1 has applied that"
    )
    silent.release()
    parked.release()
    await stage.append(3)
    stage.says("Broker 2 is unfenced, and has none of these records, when the old proposal arrives, which names it.")
    stage.mend(2, [101], inbound=False)
    await stage.until(lambda: not stage.cluster.image().brokers[2].fenced, what="broker 2 is unfenced")
    before = stage.registration().partition_epoch
    proposals.release()
    await stage.sleep(0.3)
    is_as_before = stage.isr() == {1, 3} and stage.registration().partition_epoch == before
    # With other delays, the leader has sent other proposals since: to continue alone, and with broker 3 again.
    is_newer = 2 not in stage.isr() and stage.registration().partition_epoch > before
    stage.must(is_as_before or is_newer, "the old proposal is refused")
    starved.release()
    await stage.at_rest()


@scenario("S18", "The AlterPartition response is lost", source="KAFKA-14144")
async def s18(stage: Stage) -> None:
    """The controller has committed the change. The leader does not know that, and sends its request again with the old partition
    epoch."""
    await stage.open(replicas=[1, 2, 3])
    stage.says("Broker 3 is cut off, returns and catches up. The connection breaks as the controller responds.")
    stage.cut(3)
    await stage.until(lambda: stage.isr() == {1, 2}, what="broker 3 is out")
    stage.world.network.break_on(lambda m: m.api == "AlterPartition" and not m.is_request, times=2)
    stage.mend(3)
    await stage.until(lambda: stage.isr() == {1, 2, 3}, what="the expansion is committed")
    await stage.until(
        lambda: stage.replica(1).partition_epoch == stage.registration().partition_epoch, 10.0, "broker 1 has applied it"
    )
    stage.says("Later changes go through, too.")
    stage.crash(3)
    await stage.until(lambda: stage.isr() == {1, 2}, 10.0, "broker 3 is out again")
    stage.start(3)
    await stage.at_rest()


@scenario("S19", "A retry is dropped because the first attempt is still registered", source="KAFKA-14010")
async def s19(stage: Stage) -> None:
    """A failed proposal must be sent again, and never twice at the same time."""
    await stage.open(replicas=[1, 2, 3])
    asked: dict[int, int] = {}
    most = [0]

    def look(message: Message) -> None:
        if message.api == "AlterPartition":
            asked[message.connection] = asked.get(message.connection, 0) + (1 if message.is_request else -1)
            most[0] = max(most[0], asked[message.connection])

    stage.world.network.taps.append(look)
    stage.says("Broker 3 is cut off and returns. Broker 1's proposal is lost four times.")
    stage.cut(3)
    await stage.until(lambda: stage.isr() == {1, 2}, what="broker 3 is out")
    stage.world.network.break_on(lambda m: m.api == "AlterPartition" and m.is_request, times=4)
    stage.mend(3)
    await stage.until(lambda: stage.isr() == {1, 2, 3}, 30.0, "broker 3 is in the ISR nevertheless")
    stage.must(most[0] <= 1, f"never more than one proposal of a broker is under way: {most[0]}")
    await stage.at_rest()


@scenario("S20", "A fenced replica is proposed for the ISR", source="KIP-841, KAFKA-13916")
async def s20(stage: Stage) -> None:
    """The controller fences a broker, and the leader receives this late. The controller must reject the leader's proposal to add
    the broker."""
    await stage.open(replicas=[1, 2, 3], settings={"replica.lag.time.max.ms": 1000})

    def no_fenced_member() -> bool:
        image = stage.cluster.image()
        topic = image.topic("orders")
        brokers = image.brokers
        led = [] if topic is None else [p for p in topic.partitions.values() if p.leader >= 0]  # the last member stays in the ISR
        return not any(brokers[n].fenced for p in led for n in p.isr if n in brokers)

    stage.says("Broker 3 lags and is out of the ISR. It loses its controller, and broker 1 does not receive its fencing.")
    silent = stage.hold("Fetch", source=3, target=1)
    parked = stage.hold("Fetch", source=1, target=3, response=True)
    await stage.append(3, acks=1)
    await stage.until(lambda: stage.isr() == {1, 2}, what="broker 3 is out")
    stage.always(no_fenced_member, "no fenced broker is in an ISR (I2)")
    metadata = stage.hold("Fetch", source=101, target=1, response=True, where=lambda m: stage.cluster.image().brokers[3].fenced)
    stage.cut(3, [101])
    await stage.until(lambda: stage.cluster.image().brokers[3].fenced, what="broker 3 is fenced")
    stage.says("Broker 3 catches up, so broker 1 proposes to add it to the ISR.")
    silent.release()
    parked.release()
    await stage.until(lambda: stage.end(3) == stage.end(1), what="broker 3 has caught up")
    await stage.sleep(0.5)
    stage.must(stage.isr() == {1, 2}, "the controller refuses")
    metadata.release()
    stage.mend(3, [101])
    await stage.at_rest()


@scenario("S21", "A proposal names a broker that has lost its disk since", source="KIP-903, KAFKA-14617")
async def s21(stage: Stage) -> None:
    """Broker 2 had caught up when it was proposed. Since then, it was replaced by a new process with the same id and an empty
    disk."""
    await stage.open(replicas=[1, 2], brokers=2, min_insync=1)
    await stage.append(5)
    stage.says("Broker 2 leaves and returns. Broker 1 proposes to add it to the ISR. The proposal is delayed.")
    stage.crash(2)
    await stage.until(lambda: stage.isr() == {1}, what="broker 1 is alone in the ISR")
    await stage.append(5)
    proposals = stage.hold("AlterPartition", source=1, limit=1)
    stage.start(2)
    await stage.until(lambda: proposals.has, what="broker 1 proposes broker 2")
    before = stage.cluster.image().brokers[2].broker_epoch
    stage.says("Broker 2's disk is replaced by an empty one. It registers again, with a new epoch.")
    starved = stage.hold("Fetch", source=1, target=2, response=True)
    stage.crash(2)
    stage.wipe(2)
    stage.start(2)
    await stage.until(
        lambda: stage.cluster.image().brokers[2].broker_epoch > before and not stage.cluster.image().brokers[2].fenced,
        what="broker 2 is unfenced in a new epoch",
    )
    stage.must(stage.isr() == {1}, "broker 2 is not in the ISR")
    stage.says("The proposal arrives; then broker 1 dies.")
    proposals.release()
    await stage.sleep(0.2)
    stage.must(stage.isr() == {1}, "the controller refuses the proposal: it names an older process of broker 2 (KIP-903)")
    stage.crash(1)
    starved.release()
    await stage.sleep(1.0)
    stage.must(stage.leader() == -1, "the partition has no leader, rather than one with an empty log")
    stage.start(1)
    await stage.at_rest([1, 2])


@scenario("S22", "The HW moves under min ISR", source="KAFKA-15583, KIP-966")
async def s22(stage: Stage) -> None:
    """With fewer in-sync copies than the topic requires, no record becomes visible, because it could be lost again."""
    await stage.open(replicas=[1, 2, 3])
    await stage.append(3)
    await stage.until(lambda: stage.hw(1) == 3, what="HW 3")
    stage.says("Brokers 2 and 3 die; broker 1 leads alone, under min ISR.")
    stage.crash(2)
    stage.crash(3)
    await stage.until(lambda: stage.knows_isr(1, {1}), what="ISR {1}")
    await stage.append(1, acks=1)
    await stage.sleep(1.0)
    stage.must(stage.hw(1) == 3, "the HW is frozen")
    _, read = await stage.fetch(1, 3)
    stage.must(not read, "a consumer does not see the record")
    refused = await stage.produce(1, b"all")
    stage.must(refused.error_code == ErrorCode.NOT_ENOUGH_REPLICAS, f"acks=all: {ErrorCode(refused.error_code).name}")
    stage.says("Broker 2 returns: there are two copies, and the record is committed.")
    stage.start(2)
    await stage.until(lambda: stage.hw(1) == 4, what="the HW is 4")
    stage.start(3)
    await stage.at_rest()


@scenario("S23", "The ISR shrinks between the append and the acknowledgement", source="KIP-966")
async def s23(stage: Stage) -> None:
    """There were enough replicas when the write was accepted, and too few afterwards. The write may survive or not, and the error
    must express that."""
    await stage.open(replicas=[1, 2, 3])
    stage.says("Broker 3 is cut off: the ISR is as small as allowed. A write is appended, and broker 2 does not get it.")
    stage.crash(3)
    await stage.until(lambda: stage.knows_isr(1, {1, 2}), what="ISR {1, 2}")
    held = stage.hold("Fetch", source=1, target=2, response=True)
    produce = stage.start_produce(1, b"maybe")
    await stage.until(lambda: stage.end(1) == 1, what="it is appended")
    stage.says("Broker 2 dies as well.")
    stage.crash(2)
    held.release()
    await stage.until(produce.done, 10.0, "the write is answered")
    code = produce.result().error_code
    stage.must(code == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, f"NOT_ENOUGH_REPLICAS_AFTER_APPEND: {ErrorCode(code).name}")
    stage.start(2)
    stage.start(3)
    await stage.at_rest()


@scenario("S24", "A zombie leader", source="hachikuji/kafka-specification, ReplicaPresumesLeadership")
async def s24(stage: Stage) -> None:
    """A broker that was the leader was paused, and does not know that another broker leads now. Later a leader that is not paused
    cannot reach a controller. Neither may acknowledge a write that the new leader does not have."""
    await stage.open(replicas=[1, 2, 3])
    await stage.append(5)
    stage.says("Broker 1 is stopped in the middle of a write. Broker 2 is elected, and writes.")
    produce = stage.start_produce(1, b"zombie", timeout_ms=60_000)
    stage.pause(1)
    await stage.until(lambda: stage.leader() == 2 and stage.leads(2), what="broker 2 leads")
    await stage.append(3)
    await stage.sleep(6.0)
    zombie = stage.start_produce(1, b"to the sleeper", timeout_ms=60_000)
    stage.says("Broker 1 is resumed; its sockets are full of requests that clients and followers have sent since.")
    stage.resume(1)
    await stage.until(lambda: produce.done() and zombie.done(), 60.0, "both writes are answered")
    said = produce.exception() or ErrorCode(produce.result().error_code).name
    if stage.values(2).get(5) != b"zombie":
        stage.must(said != "NONE", f"the write that broker 2 does not have is no success: {said}")
    stage.must(zombie.exception() or zombie.result().error_code, "a write to the resumed broker is refused")
    await stage.at_rest()

    stage.says("Now broker 2 is cut off from the controller only. The others follow its successor.")
    stage.cut(2, [101])
    late = stage.start_produce(2, b"still here", timeout_ms=4000)
    await stage.until(lambda: stage.leader() not in (-1, 2), what="another leads")
    await stage.until(lambda: stage.leads(stage.leader()), what="it has become leader")
    after = stage.start_produce(2, b"after", timeout_ms=4000)
    await stage.until(lambda: late.done() and after.done(), 60.0, "both writes are answered")
    stage.must(after.exception() or after.result().error_code, "after its successor's election it acknowledges nothing")
    stage.mend(2, [101])
    await stage.at_rest()
