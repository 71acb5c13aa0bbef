"""Transactions: S115 to S124."""

from __future__ import annotations

from strandline.protocol.errors import ErrorCode
from strandline.testing.simulation.scenarios.fencing import delete
from strandline.testing.simulation.scenarios.stage import Stage, scenario
from strandline.testing.simulation.scenarios.transaction_stage import Shop, code_of, open_transactions


@scenario("S115", "A coordinator dies between the decision and the markers", source="KAFKA-20357; KIP-98")
async def s115(stage: Stage) -> None:
    """The coordinator dies after it has decided the commit and before it has sent the markers. The next coordinator sends the
    markers. The answer to the producer was lost, so it sends EndTxn again: it gets the next epoch, once, and is not fenced."""
    shop = await open_transactions(stage)
    first = shop.producer("first")
    await first.init()
    for index in (0, 1):
        await first.append(index, b"a%d" % index)
    before = first.epoch
    stage.says("The producer commits. The decision is committed, no marker leaves, and the answer is lost.")
    markers = stage.hold("WriteTxnMarkers")
    answers = stage.hold("EndTxn", response=True)
    asking = first.start(first.end_once(commit=True))
    await stage.until(lambda: markers.has and answers.has, what="the decision is committed")
    stage.must(await shop.values(0) == [] == await shop.values(1), "no reader sees the records before the markers")
    dead = await shop.moves()
    markers.release()
    answers.release()
    stage.must(await code_of(asking) is not ErrorCode.NONE, "the answer is lost")
    stage.says("The next coordinator completes the transaction; the producer asks again.")
    await shop.becomes("CompleteCommit")
    stage.must(await code_of(first.end(commit=True)) is ErrorCode.NONE, "it is not fenced")
    stage.must(first.epoch == before + 1, f"it continues with epoch {before + 1}, and has {first.epoch}")
    for index in (0, 1):
        await shop.shows([b"a%d" % index], index)
    await first.append(0, b"b")
    await first.end(commit=True)
    await shop.shows([b"a0", b"b"], 0)
    stage.start(dead)
    await stage.at_rest()


@scenario("S116", "A record arrives after the end of its transaction", source="KAFKA-12671; KIP-890")
async def s116(stage: Stage) -> None:
    """A late record would begin a transaction that no producer ends: readers of committed records would wait forever."""
    shop = await open_transactions(stage)
    first = shop.producer("first")
    await first.init()
    await first.append(0, b"a")
    stage.says("The second record is held up, and the producer aborts without it.")
    held = stage.hold("Produce")
    late = first.start(first.append_once(0, b"late"))
    await stage.until(lambda: held.has, what="the record is held up")
    await first.end(commit=False)
    await shop.becomes("CompleteAbort")
    end = stage.end(1)
    held.release()
    stage.must(await code_of(late) is ErrorCode.INVALID_PRODUCER_EPOCH, "the late record is refused")
    stage.must(stage.end(1) == end, "nothing is appended")
    await first.append(0, b"b")
    await first.end(commit=True)
    await shop.shows([b"b"])
    stage.must(shop.stable(1) == stage.hw(1), "no transaction is open")
    await stage.at_rest()


@scenario("S117", "A marker is appended, and not committed", source="redpanda-data/redpanda#10671; KAFKA-20716")
async def s117(stage: Stage) -> None:
    """The last stable offset does not pass a marker before the high watermark does: otherwise a leader that lost the marker would
    take back records that readers have seen."""
    shop = await open_transactions(stage, coordinators=(2, 3, 1))
    first = shop.producer("first")
    await first.init()
    await first.append(0, b"a")
    await stage.until(lambda: all(stage.hw(n) == 1 for n in (1, 2, 3)), what="the record is committed everywhere")
    stage.says("The followers get nothing more from broker 1, which appends the marker.")
    held = [stage.hold("Fetch", source=1, target=n, response=True) for n in (2, 3)]
    await first.end(commit=True)
    await stage.until(lambda: stage.end(1) == 2, what="the marker is appended")
    stage.must(shop.stable(1) == 0, "the last stable offset is that of the first record")
    answer, values, _ = await shop.fetched(0)
    stage.must((answer.last_stable_offset, values) == (0, []), "readers see nothing yet")
    stage.says("Broker 1 dies with the marker. The next leader does not have it, and gets it again.")
    stage.crash(1)
    for hold in held:
        hold.release()
    await stage.until(lambda: stage.leader() in (2, 3), what="another broker leads")
    await shop.shows([b"a"])
    await shop.becomes("CompleteCommit")
    stage.start(1)
    await stage.at_rest()


@scenario("S118", "A marker is written twice", source="KAFKA-19999")
async def s118(stage: Stage) -> None:
    """The answer to a marker is lost, so the coordinator sends the marker again, with the same epoch. The repeated marker ends no
    transaction, and must succeed: otherwise the transaction never completes."""
    shop = await open_transactions(stage)
    first = shop.producer("first")
    await first.init()
    await first.append(0, b"a")
    await first.append(1, b"b")
    stage.world.network.break_on(lambda m: m.api == "WriteTxnMarkers" and not m.is_request)
    await first.end(commit=True)
    await shop.becomes("CompleteCommit")
    stage.must(shop.markers(0) + shop.markers(1) > 2, "a marker is in the log twice")
    for index, value in enumerate((b"a", b"b")):
        await shop.shows([value], index)
    stage.says("The next transaction ends as well.")
    await first.append(0, b"c")
    await first.end(commit=False)
    await shop.becomes("CompleteAbort")
    stage.must(await shop.values(0) == [b"a"], "its record is aborted")
    await stage.at_rest()


@scenario("S119", "Two processes have the same transactional id", source="KIP-98; KIP-360")
async def s119(stage: Stage) -> None:
    """Two processes have the same transactional id. The second one aborts the transaction of the first, which can then neither
    write nor commit."""
    shop = await open_transactions(stage)
    zombie, owner = shop.producer("zombie"), shop.producer("owner")
    await zombie.init()
    await zombie.append(0, b"old")
    stage.says("The second process takes the id.")
    await owner.init()
    stage.must(owner.producer_id == zombie.producer_id and owner.epoch > zombie.epoch, "it has a higher epoch")
    await owner.append(0, b"new")
    stage.says("The first one continues.")
    stage.must(await code_of(zombie.append_once(0, b"x")) is ErrorCode.INVALID_PRODUCER_EPOCH, "it cannot write there")
    code = await code_of(zombie.append_once(1, b"x"))
    stage.must(code in (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED), f"nor to another partition: {code.name}")
    for commit in (True, False):
        code = await code_of(zombie.end_once(commit=commit))
        stage.must(code is ErrorCode.PRODUCER_FENCED, f"nor end the transaction of the other: {code.name}")
    stage.must(await code_of(zombie.init_again_once()) is ErrorCode.PRODUCER_FENCED, "nor take the id back as if it were its own")
    await owner.end(commit=True)
    await shop.shows([b"new"])
    await stage.at_rest()


@scenario("S120", "A coordinator dies between two processes of a transactional id", source="KAFKA-19367; KAFKA-18660")
async def s120(stage: Stage) -> None:
    """Producer epochs survive the coordinator, and each transaction and each process raises them by one."""
    shop = await open_transactions(stage)
    first, second = shop.producer("first"), shop.producer("second")
    await first.init()
    await first.append(0, b"a")
    await first.end(commit=True)
    await shop.becomes("CompleteCommit")
    stage.must(first.epoch == 1, "the transaction has raised the epoch by one")
    await shop.answered(second.init_once)
    stage.must(second.epoch == 2, f"the next process has epoch 2, and not {second.epoch}")
    dead = await shop.moves()
    third = shop.producer("third")
    await third.init()
    stage.must(third.epoch == 3, f"after the fail-over the next process has epoch 3, and not {third.epoch}")
    for older in (first, second):
        code = await code_of(older.end_once(commit=True))
        stage.must(code is ErrorCode.PRODUCER_FENCED, f"{older.name} is fenced: {code.name}")
    await third.append(0, b"b")
    await third.end(commit=True)
    await shop.shows([b"a", b"b"])
    stage.start(dead)
    await stage.at_rest()


@scenario("S121", "A producer dies in a transaction", source="KAFKA-9144; KIP-98")
async def s121(stage: Stage) -> None:
    """The coordinator aborts a transaction after its time-out, also if another coordinator has taken over meanwhile. The
    producer, which was only slow, gets TRANSACTION_ABORTABLE, aborts, and continues."""
    shop = await open_transactions(stage)
    slow = shop.producer("slow", timeout_ms=2000)
    await slow.init()
    await slow.append(0, b"a")
    other = shop.producer("other")
    other.shop = type(shop)(stage, "another id")
    await other.shop.answered(other.init_once)
    await other.append(0, b"other")
    await other.end(commit=True)
    stage.must(await shop.values() == [], "readers wait for the open transaction")
    dead = await shop.moves()
    await shop.becomes("CompleteAbort")
    await shop.shows([b"other"])
    stage.says("The producer wants to commit.")
    code = await code_of(slow.end_once(commit=True))
    stage.must(code is ErrorCode.TRANSACTION_ABORTABLE, f"it gets the error that asks it to abort: {code.name}")
    await slow.end(commit=False)
    await slow.append(0, b"b")
    await slow.end(commit=True)
    await shop.shows([b"other", b"b"])
    stage.start(dead)
    await stage.at_rest()


@scenario("S122", "Readers of committed records meet aborted ones", source="Jepsen: Redpanda 21.10.1; redpanda#28360")
async def s122(stage: Stage) -> None:
    """Three transactions overlap in one partition, over several segments. Readers get exactly the committed records from every
    replica, also from one that has restarted, and from every position."""
    shop = await open_transactions(stage, partitions=1, segment_bytes="1024")
    shops = [type(shop)(stage, name) for name in ("one", "two", "three")]
    producers = [each.producer(each.transactional_id) for each in shops]
    for producer in producers:
        await producer.init()
    kept: list[bytes] = []
    for turn in range(4):
        for number, producer in enumerate(producers):
            for n in range(3):
                await producer.append(0, b"%d-%d-%d " % (turn, number, n) + b"." * 100)
        for number in (2, 0, 1):
            is_commit = (turn + number) % 2 == 0
            await producers[number].end(commit=is_commit)
            await shops[number].becomes("CompleteCommit" if is_commit else "CompleteAbort")
        kept += [b"%d-%d-%d" % (turn, number, n) for number in range(3) if (turn + number) % 2 == 0 for n in range(3)]
    stage.must(len(stage.replica(1).log.segments) > 3, "the log has several segments")
    await stage.until(lambda: shop.stable(1) == stage.end(1), what="no transaction is open")
    for broker in (1, 2, 3):
        await stage.until(lambda n=broker: stage.hw(n) == stage.end(1), what="the replica has all")  # type: ignore[misc]
        await sees(stage, shop, broker, kept)
    stage.says("Broker 2 restarts without its snapshots and indexes of transactions, and leads.")
    stage.crash(2)
    files = stage.cluster.machines[2].files
    for path in list(files.contents("/data/orders-0/*")):
        if path.endswith((".snapshot", ".txnindex")):
            files.remove(path)
    stage.start(2)
    await stage.until(lambda: stage.isr() == {1, 2, 3}, what="broker 2 is back")
    await stage.until(lambda: stage.has(2) and shop.stable(2) == stage.end(1), what="its last stable offset is the log end")
    await sees(stage, shop, 2, kept)
    stage.crash(1)
    await stage.until(lambda: stage.leader() in (2, 3) and stage.leads(stage.leader()), what="another broker leads")
    await stage.until(
        lambda: shop.stable(stage.leader()) == stage.end(stage.leader()), what="its last stable offset is the log end"
    )
    await sees(stage, shop, stage.leader(), kept)
    stage.start(1)
    await stage.at_rest()


async def sees(stage: Stage, shop: Shop, broker: int, kept: list[bytes]) -> None:
    """Readers of this replica get the committed values, from each position on."""
    everything = await shop.read(broker, 0)
    found = [value.split(b" ")[0] for _, value in everything]
    stage.must(found == kept, f"broker {broker} shows what was committed, and no more: {found}")
    for offset in range(0, stage.end(broker), 5):
        rest = [(at, value) for at, value in everything if at >= offset]
        stage.must(await shop.read(broker, offset) == rest, f"broker {broker} shows the rest from offset {offset} on")


@scenario("S123", "A cleaner meets the newest value of a key in an aborted transaction", source="KAFKA-4923; KIP-98")
async def s123(stage: Stage) -> None:
    """An aborted value supersedes nothing: the committed one before it must stay, on each replica and for each reader. A marker
    outlives the records of its transaction, so that a reader that began before the cleaning still receives the abort."""
    shop = await open_transactions(
        stage,
        partitions=1,
        more={"log.cleaner.backoff.ms": 50},
        cleanup_policy="compact",
        segment_bytes="1000",
        min_cleanable_dirty_ratio="0.0",
    )
    first = shop.producer("first")
    await first.init()
    for turn in range(6):
        for key in (b"k1", b"k2"):
            await first.append(0, b"%s-%d" % (key, turn) + b"." * 100, key=key)
        await first.end(commit=turn != 5)
        await shop.becomes("CompleteCommit" if turn != 5 else "CompleteAbort")
    stage.says("Another producer fills segments, so that the cleaners get to all of that.")
    other = shop.producer("other")
    await other.init()
    for n in range(12):
        await other.append(0, b"filler-%d" % n + b"." * 100, key=b"filler")
        await other.end(commit=True)

    def are_clean() -> bool:
        logs = [stage.replica(n).log for n in (1, 2, 3)]
        return all(log.first_dirty_offset >= 20 for log in logs)

    await stage.until(are_clean, 60.0, "all replicas are cleaned")
    for broker in (1, 2, 3):
        await stage.until(lambda n=broker: shop.stable(n) == stage.end(1), what="the replica has all")  # type: ignore[misc]
        found = [value.split(b".")[0] for _, value in await shop.read(broker, 0)]
        stage.must(found[:2] == [b"k1-4", b"k2-4"], f"broker {broker} has the last committed values: {found}")
    await stage.at_rest()


@scenario("S124", "The records of an open transaction are deleted, and its leader dies", source="KAFKA-7190; KAFKA-8710")
async def s124(stage: Stage) -> None:
    """No batch of the producer is left in the log, and a follower with an empty disk that begins after the deleted records does
    not have the producer's state. When this follower leads, the producer cannot continue the transaction: it aborts all of it,
    also the record that is still in the other partition, and continues with the next one."""
    shop = await open_transactions(stage)
    first = shop.producer("first")
    await first.init()
    await first.append(0, b"a", b"b")
    await first.append(1, b"a")
    stage.says("All records of partition 0 are deleted.")
    await stage.client.run(delete(stage, 2))
    stage.says("Broker 2 gets an empty disk, and copies the log.")
    stage.crash(2)
    await stage.until(lambda: 2 not in stage.isr(), what="broker 2 is out of the ISR")
    stage.wipe(2)
    stage.start(2)
    await stage.until(lambda: stage.isr() == {1, 2, 3}, what="all are in sync")
    stage.says("The leader dies.")
    stage.crash(1)
    await stage.until(lambda: stage.leader() == 2, what="the one with the fresh copy leads")
    code = await code_of(first.append(0, b"c"))
    stage.must(code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, f"it does not have the state of the earlier batches: {code.name}")
    await first.end(commit=False)
    await shop.becomes("CompleteAbort")
    stage.says("The next transaction begins with the first sequence number of its epoch.")
    await first.append(0, b"d")
    await first.append(1, b"d")
    await first.end(commit=True)
    await shop.becomes("CompleteCommit")
    await shop.shows([b"d"], 1)
    await stage.until(lambda: shop.stable(stage.leader()) == stage.hw(stage.leader()), what="no transaction is open")
    stage.start(1)
    await stage.at_rest()
