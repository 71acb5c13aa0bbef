"""Truncation and divergence: S01, and S03 to S12."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from strandline.broker.partition.partition import FetchPosition, Partition
from strandline.protocol.messages.data import FetchPartitionResponse
from strandline.protocol.records.batch import iter_headers
from strandline.protocol.records.builder import encode_batch
from strandline.testing.simulation.kernel.network import Message
from strandline.testing.simulation.scenarios.stage import Stage, scenario


@scenario("S03", "Fast fail-over fork: the leader lacks the asked epoch", source="KIP-279, KAFKA-6361")
async def s03(stage: Stage) -> None:
    """Two fail-overs in a row leave three logs of which no two agree after offset 9. The last leader does not have the epoch in
    the fetch of the returning broker, and must answer with the largest earlier epoch that it has."""
    await stage.open(replicas=[1, 2, 3])
    stage.says("Broker 1 leads in epoch 0. Ten records are on all three replicas, and acknowledged.")
    await stage.append(10)
    await stage.until(lambda: {stage.hw(n) for n in (1, 2, 3)} == {10}, what="all replicas have HW 10")

    stage.says("Broker 1 appends two more. Only broker 3 fetches them: the responses to broker 2 are held back.")
    held = stage.hold("Fetch", source=1, target=2, response=True)
    await stage.append(2, acks=1)
    await stage.until(lambda: stage.end(3) == 12, what="broker 3 has 12 records")
    first_epoch = stage.registration().leader_epoch

    stage.says("Broker 1 is cut off. Broker 2, still in the ISR, is elected, and appends two records of its own at 10 and 11.")
    fetches = stage.hold("Fetch", source=3, target=2)
    stage.cut(1)
    held.release()  # into a cut link
    await stage.until(lambda: stage.leader() == 2 and stage.leads(2), what="broker 2 leads")
    second_epoch = stage.registration().leader_epoch
    await stage.append(2, acks=1, broker=2)

    stage.says("Before broker 3 can ask it anything, broker 2 dies. Broker 3 is elected: its 10 and 11 are broker 1's.")
    stage.crash(2)
    fetches.release()
    await stage.until(lambda: stage.leader() == 3 and stage.leads(3), what="broker 3 leads")
    await stage.append(1, acks=1, broker=3)
    stage.must(stage.end(3) == 13, "broker 3 continues at offset 12")
    third_epoch = stage.registration().leader_epoch
    stage.must(stage.epochs(3) == [(first_epoch, 0), (third_epoch, 12)], f"broker 3 has nothing of epoch {second_epoch}")

    stage.says(
        f"Broker 2 returns and fetches from 12, saying that its last record is of epoch {second_epoch}. Broker 3 does not know "
        f"that epoch. Before KIP-279 a response was only an offset, where the next epoch that the leader knows begins: 12. "
        "Broker 2 would have truncated nothing, and kept its own 10 and 11 for ever. Now the response names an epoch, too, the "
        "largest "
        f"below the requested one: epoch {first_epoch}, which ended at 12. Broker 2 truncates its log where its own epoch "
        f"{first_epoch} ended, at 10, and fetches again."
    )
    stage.start(2)
    await stage.until(lambda: stage.end(2) == 13, what="broker 2 has 13 records")
    stage.must(stage.log_bytes(2) == stage.log_bytes(3), "broker 2's log is broker 3's, byte for byte")
    stage.must(second_epoch not in dict(stage.epochs(2)), f"nothing of epoch {second_epoch} is left on broker 2")

    stage.says("The network is whole again. Broker 1 follows, and nothing that acks=all acknowledged is missing anywhere.")
    stage.mend(1)
    await stage.at_rest()


@scenario("S01", "Truncation to the high watermark loses an acknowledged record", source="KIP-101 scenario 1, KAFKA-1211")
async def s01(stage: Stage) -> None:
    """A follower has a record and does not know yet that it is committed. When it follows again, or leads, it must not truncate
    records that it has in common with its leader."""
    await stage.open(replicas=[1, 2], brokers=2, min_insync=1)
    stage.says("Broker 1 leads, broker 2 follows; both have offset 0, and HW 1.")
    await stage.append(1)
    await stage.until(lambda: stage.hw(2) == 1, what="broker 2 has HW 1")

    stage.says("Offset 1 is appended, fetched and acknowledged; the response that would bring HW 2 to broker 2 is held back.")
    held = stage.hold("Fetch", source=1, target=2, response=True, where=lambda m: stage.end(2) == 2)
    await stage.append(1)
    stage.must(stage.end(2) == 2 and stage.hw(2) == 1, "broker 2 has the record, and its own HW is still 1")

    stage.says("Broker 1 loses its power. Broker 2 is elected with HW 1.")
    stage.crash(1, lossy=True)
    held.release()
    await stage.until(lambda: stage.leader() == 2 and stage.leads(2), what="broker 2 leads")
    stage.must(stage.end(2) == 2, "broker 2 has truncated nothing")
    await stage.until(lambda: stage.hw(2) == 2, what="offset 1 is committed again, now that the ISR is broker 2 alone")
    stage.must_have_all(2)

    stage.says("Broker 1 returns with what its disk kept, and follows.")
    stage.start(1)
    await stage.at_rest([1, 2])


SHAPES: dict[str, tuple[list[tuple[int, int]], list[tuple[int, int]], int]] = {
    "behind, same epoch": ([(1, 10)], [(1, 6)], 6),
    "behind, and a newer epoch has begun": ([(1, 6), (2, 6)], [(1, 4)], 4),
    "ahead, same epoch": ([(1, 8)], [(1, 12)], 8),
    "ahead, in a newer epoch": ([(1, 8)], [(1, 8), (2, 4)], 8),
    "forked, each with an epoch of its own": ([(1, 6), (3, 4)], [(1, 6), (2, 4)], 6),
    "forked, the leader went on in the old epoch": ([(1, 10), (3, 2)], [(1, 6), (2, 6)], 6),
    "no epoch in common": ([(3, 10)], [(2, 8)], 0),
}
"""Name -> the logs of leader and follower as runs of (epoch, records), and the offset at which they diverge."""


@scenario("S04", "All seven shapes of divergence", source="Vanlightly/kafka-tlaplus, KIP-966 description section 3")
async def s04(stage: Stage) -> None:
    """In every shape of divergence, the follower truncates its log at the offset where the logs diverge, and no record more."""
    await stage.open(replicas=[1, 2], brokers=2, min_insync=1)
    await stage.raise_epoch(4, leader=1, other=2)
    for name, (leaders, followers, parting) in SHAPES.items():
        stage.says(f"The follower is {name}: the leader has {_runs(leaders)}, the follower {_runs(followers)}.")
        await stage.end_both(1, 2)
        stage.forge(1, leaders)
        stage.forge(2, followers)
        kept = _forged(followers)[:parting]
        await stage.start_both(1, 2)
        held = stage.values(2)
        stage.must(stage.log_bytes(1) == stage.log_bytes(2), "the two logs are equal")
        stage.must(list(held.values())[:parting] == kept, f"what they had in common, up to offset {parting}, is there")
        cuts = stage.replica(2).log.truncations
        stage.must(cuts == (parting < sum(count for _, count in followers)), f"it was cut at most once: {cuts} truncations")


def _runs(runs: list[tuple[int, int]]) -> str:
    offset, texts = 0, []
    for epoch, count in runs:
        texts.append(f"{offset}..{offset + count - 1}@e{epoch}")
        offset += count
    return " ".join(texts)


def _forged(runs: list[tuple[int, int]]) -> list[bytes]:
    values: list[bytes] = []
    for epoch, count in runs:
        values += [b"%d@e%d" % (len(values) + n, epoch) for n in range(count)]
    return values


@scenario("S05", "The epoch of a leader that wrote nothing is missing", source="KAFKA-7415")
async def s05(stage: Stage) -> None:
    """A leader adds its epoch to the epoch cache, at its LEO, when it begins to lead, not with its first record. Otherwise later
    questions about earlier epochs get wrong answers."""
    await stage.open(replicas=[1, 2, 3])
    stage.says("Ten records are on all replicas. An eleventh reaches broker 3 alone, which is then stopped.")
    await stage.append(10)
    await stage.until(lambda: {stage.hw(n) for n in (1, 2, 3)} == {10}, what="all replicas have HW 10")
    held = stage.hold("Fetch", source=1, target=2, response=True)
    await stage.append(1, acks=1)
    await stage.until(lambda: stage.end(3) == 11, what="broker 3 has the eleventh")
    stage.pause(3)

    stage.says("Broker 1 dies, broker 2 leads and writes nothing; broker 1 returns, broker 2 dies, broker 1 writes nothing.")
    stage.crash(1)
    held.release()
    await stage.until(lambda: stage.leader() == 2 and stage.leads(2), what="broker 2 leads")
    second = stage.registration().leader_epoch
    stage.must(stage.epochs(2)[-1] == (second, 10), f"broker 2 has recorded that epoch {second} begins at 10")
    stage.start(1)
    await stage.until(lambda: stage.isr() >= {1, 2}, what="broker 1 is back in the ISR")
    stage.crash(2)
    await stage.until(lambda: stage.leader() == 1 and stage.leads(1), what="broker 1 leads")
    third = stage.registration().leader_epoch
    stage.must(stage.epochs(1)[-1] == (third, 10), f"broker 1 has recorded that epoch {third} begins at 10")
    stage.start(2)
    await stage.until(lambda: stage.isr() >= {1, 2}, what="broker 2 is back in the ISR")

    stage.says("Broker 2 leads once more, and writes a record at 10. Broker 3 is resumed with its own record there.")
    stage.crash(1)
    await stage.until(lambda: stage.leader() == 2 and stage.leads(2), what="broker 2 leads again")
    await stage.append(1, acks=1)
    stage.resume(3)
    await stage.until(lambda: stage.has(3) and stage.end(3) == stage.end(2) and not stage.leads(3), what="broker 3 has caught up")
    await stage.until(lambda: stage.log_bytes(3) == stage.log_bytes(2), what="broker 3 has the same records as broker 2")
    stage.start(1)
    await stage.at_rest()


@scenario("S06", "A truncation to the LEO leaves a stale epoch", source="KAFKA-10706")
async def s06(stage: Stage) -> None:
    """No record has to be truncated, but the epoch cache has to drop an entry. Otherwise the follower would send the same epoch
    forever."""
    await stage.open(replicas=[1, 2], brokers=2, min_insync=1)
    await stage.append(10)
    diverging: list[int] = []

    def look(message: Message) -> None:
        if message.api == "Fetch" and not message.is_request and (message.source, message.target) == (1, 2):
            diverging.extend(p.diverging_epoch.end_offset for p in message.body.partitions if p.diverging_epoch.epoch >= 0)

    stage.says(
        "Broker 1 dies. Broker 2 leads in an epoch in which it writes nothing; broker 1 returns and does not receive that epoch."
    )
    stage.crash(1)
    await stage.until(lambda: stage.leader() == 2 and stage.leads(2), what="broker 2 leads")
    idle = stage.registration().leader_epoch
    stage.start(1)
    await stage.until(lambda: stage.isr() == {1, 2}, what="broker 1 is in the ISR")
    stage.must(idle not in dict(stage.epochs(1)), f"broker 1 has no entry of epoch {idle}")
    stage.says(
        "Broker 2 is cut off, and broker 1 leads. Then broker 2 follows, and fetches from its log end, which is also the "
        "leader's."
    )
    stage.cut(2)
    await stage.until(lambda: stage.leader() == 1 and stage.leads(1), what="broker 1 leads")
    stage.must((idle, 10) in stage.epochs(2), f"broker 2 has the entry of epoch {idle}")
    stage.world.network.taps.append(look)
    stage.mend(2)
    await stage.until(lambda: stage.isr() == {1, 2}, within_s=10, what="broker 2 is in the ISR: no loop")
    stage.must(0 < len(diverging) <= 2, f"the leader answered {len(diverging)} times that it does not have epoch {idle}")
    stage.must(idle not in dict(stage.epochs(2)), f"broker 2 has removed epoch {idle}")
    await stage.append(1)


@scenario("S07", "The new leader's HW is applied before the truncation", source="KAFKA-14704")
async def s07(stage: Stage) -> None:
    """A former leader with a log tail of its own receives its new leader's HW, which lies beyond that tail. The records of the
    tail are not the committed ones, so the HW must not cover them, not even for a moment."""
    await stage.open(replicas=[1, 2, 3])
    stage.says("Ten records are committed. Broker 1, cut off from the others, appends three more that no other replica has.")
    await stage.append(10)
    await stage.until(lambda: {stage.hw(n) for n in (1, 2, 3)} == {10}, what="all replicas have HW 10")
    stage.cut(1, [2, 3])
    stage.cut(1, [101], inbound=True, outbound=True)
    for _ in range(3):
        await stage.append(1, acks=1, broker=1)
    tail = {offset: value for offset, value in stage.values(1).items() if offset >= 10}
    stage.says("Broker 2 is elected, and commits five others from offset 10 on: its HW is 15.")
    await stage.until(lambda: stage.leader() == 2 and stage.leads(2), what="broker 2 leads")
    await stage.append(5)
    stage.must(stage.hw(2) == 15, "the new leader's HW is 15")

    def hides_its_tail() -> bool:
        partition = stage.cluster.partition(1, "orders")
        if partition is None or partition.log.high_watermark <= 10 or partition.log.log_end_offset <= 10:
            return True
        return stage.values(1).get(10) != tail[10]

    stage.always(hides_its_tail, "broker 1 never shows a record of its own tail as committed")
    stage.says("Broker 1 follows its new leader and fetches. The response says where the logs diverge, and HW 15.")
    stage.mend(1, [2, 3])
    stage.mend(1, [101])
    await stage.at_rest()


@scenario("S08", "A fetch below the leader's log start with a diverging epoch", source="KAFKA-12996")
async def s08(stage: Stage) -> None:
    """The follower's fetch is out of range and has a diverging epoch. OFFSET_OUT_OF_RANGE wins, because its log is useless."""
    await stage.open(replicas=[1, 2], brokers=2, min_insync=1)
    await stage.raise_epoch(4, leader=1, other=2)
    stage.says("The leader's log begins at 50, in epoch 3; the follower ends at 20, in epoch 1.")
    await stage.end_both(1, 2)
    stage.forge(1, [(3, 10)], start=50)
    stage.forge(2, [(1, 20)], high_watermark=20)
    await stage.start_both(1, 2, within_s=10)
    log = stage.replica(2).log
    stage.must((log.log_start_offset, log.log_end_offset) == (50, 60), "broker 2 restarted its log at 50")


@scenario("S09", "The last fetched epoch is lost after an empty response", source="KAFKA-15510")
async def s09(stage: Stage) -> None:
    """A follower that has caught up gets empty responses. Its later fetches must still have the epoch of its last record."""
    await stage.open(replicas=[1, 2, 3])
    await stage.append(5)
    silent: list[str] = []

    def look(message: Message) -> None:
        if message.api == "Fetch" and message.is_request and message.target < 100 and message.source < 100:
            for partition in message.body.partitions:
                if partition.fetch_offset > 0 and partition.last_fetched_epoch < 0:
                    silent.append(f"broker {message.source} asks from {partition.fetch_offset} without its last epoch")

    stage.world.network.taps.append(look)
    stage.says("All replicas are caught up; for two seconds the followers get empty responses.")
    await stage.sleep(2.0)
    stage.says("Only broker 3 fetches one more record; then broker 1 dies, and broker 2 writes another one at its offset.")
    held = stage.hold("Fetch", source=1, target=2, response=True)
    await stage.append(1, acks=1)
    await stage.until(lambda: stage.end(3) == 6, what="broker 3 has the sixth")
    stage.pause(3)
    stage.crash(1)
    held.release()
    await stage.until(lambda: stage.leader() == 2 and stage.leads(2), what="broker 2 leads")
    await stage.append(1, acks=1)
    stage.resume(3)
    await stage.until(lambda: stage.end(3) == 6 and stage.log_bytes(3) == stage.log_bytes(2), what="broker 3 found the fork")
    stage.must(not silent, silent[0] if silent else "every fetch of a log with records names its last epoch")
    stage.start(1)
    await stage.at_rest()


@scenario("S10", "A follower that is ahead of its leader survives", source="KAFKA-3410, KAFKA-3924")
async def s10(stage: Stage) -> None:
    """A follower whose log is longer than its leader's truncates it. In Kafka, such a follower once took this for a forbidden
    unclean election, and ended its process."""
    await stage.open(replicas=[1, 2], brokers=2, min_insync=1)
    await stage.raise_epoch(4, leader=1, other=2)
    stage.says("The follower has twenty records, its leader fifteen: the other five were never committed.")
    await stage.end_both(1, 2)
    stage.forge(1, [(1, 15)])
    stage.forge(2, [(1, 20)])
    await stage.start_both(1, 2, within_s=10)
    stage.must(stage.end(2) == 15, "broker 2 has truncated the records that its leader does not have")
    stage.must(not stage.cluster.failures, "no process ended")


@scenario("S11", "A full truncation leaves the HW behind", source="KAFKA-9491, KAFKA-16452")
async def s11(stage: Stage) -> None:
    """A follower drops its whole log and restarts at its leader's log start. Its HW has to move with it. Otherwise, if it is
    elected before it receives a newer HW, it cannot serve its records."""
    await stage.open(replicas=[1, 2], brokers=2, min_insync=1)
    await stage.raise_epoch(4, leader=1, other=2)
    stage.says("The leader's log begins at 100. The follower has 0 to 19, all committed.")
    await stage.end_both(1, 2)
    stage.forge(1, [(3, 5)], start=100)
    stage.forge(2, [(1, 20)], high_watermark=20)

    def in_order() -> bool:
        logs = [p.log for n in (1, 2) if (p := stage.cluster.partition(n, "orders")) is not None]
        return all(log.log_start_offset <= log.high_watermark <= log.log_end_offset for log in logs)

    stage.start(1)
    await stage.until(lambda: stage.leads(1), what="broker 1 leads")
    stage.always(in_order, "log start <= HW <= LEO at all times (I5)")
    stage.start(2)
    stage.says("As soon as the follower is in the ISR, and before it gets a HW, the leader dies.")
    await stage.until(lambda: stage.isr() == {1, 2}, what="broker 2 is in the ISR")
    stage.crash(1)
    await stage.until(lambda: stage.leader() == 2 and stage.leads(2), what="broker 2 leads")
    answer, records = await stage.fetch(2, 100, max_wait_ms=2000)
    stage.must(not answer.error_code and records and records[0][0] == 100, "a consumer at 100 is served")


@scenario("S12", "Records of a future epoch in a fetch response", source="KAFKA-18723")
async def s12(stage: Stage) -> None:
    """A leader may lose and regain its leadership while it builds a response. The last records that it read are then of a newer
    epoch than the follower's request, so the follower cannot judge whether its own log fits. And a response may be malformed."""
    await stage.open(replicas=[1, 2], brokers=2, min_insync=1)
    await stage.append(9)
    await stage.until(lambda: stage.end(2) == 9, what="broker 2 has nine records")
    append_fetched, lies = Partition.append_fetched, list[Callable[[bytes, Partition], bytes]]()

    def lying(self: Partition, position: FetchPosition, response: FetchPartitionResponse, records: memoryview) -> bool:
        if lies and len(records) and self.context.broker_id == 2:
            records = memoryview(bytearray(lies.pop()(bytes(records), self)))
        return append_fetched(self, position, response, records)

    stage.patch(Partition, "append_fetched", lying)

    def of_the_future(records: bytes, partition: Partition) -> bytes:
        *_before, (_at, last) = iter_headers(records)
        later = encode_batch(
            [(None, b"future", [], 0)], base_offset=last.last_offset + 1, leader_epoch=partition.leader_epoch + 2
        )
        return records + later

    def broken(records: bytes, _: Partition) -> bytes:
        return records[:-1] + bytes([records[-1] ^ 1])

    def gap(records: bytes, _: Partition) -> bytes:
        *_before, (_at, last) = iter_headers(records)
        return records + encode_batch([(None, b"gap", [], 0)], base_offset=last.last_offset + 3, leader_epoch=0)

    for name, lie in (("also has a record of a later epoch", of_the_future), ("has a wrong bit", broken), ("has a gap", gap)):
        stage.says(f"A response to broker 2 {name}.")
        lies.append(lie)
        expected = stage.end(1) + 1
        await stage.append(1)
        await stage.until(lambda: not lies, what="broker 2 has got it")
        stage.must(stage.end(2) <= expected, "it has appended nothing that its leader does not have")
        await stage.until(partial(_ends_at, stage, expected), 10.0, "it fetches again and continues")
        stage.must(stage.log_bytes(2) == stage.log_bytes(1), "the two logs are equal")


def _ends_at(stage: Stage, offset: int) -> bool:
    return stage.end(2) == offset
