"""Idempotent producers: S38 to S40."""

from __future__ import annotations

from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.testing.simulation.scenarios.stage import Stage, scenario

Producer = tuple[int, int]


@scenario("S38", "A retry across a fail-over", source="ducktape replication_test; redpanda-data/redpanda#3039")
async def s38(stage: Stage) -> None:
    """The write was committed, and its response was lost. The producer cannot know that, and retries at another leader."""
    await stage.open(replicas=[1, 2, 3])
    producer = await stage.init_producer()
    await stage.produce(1, *[b"a%d" % n for n in range(5)], producer=producer, sequence=0)
    stage.says("Sequences 5 to 9 are appended and committed. The connection breaks as the response arrives.")
    values = [b"b%d" % n for n in range(5)]
    stage.world.network.break_on(lambda m: m.api == "Produce" and not m.is_request)
    try:
        await stage.produce(1, *values, producer=producer, sequence=5)
        stage.must(stage.perturbed, "the answer is lost")
    except BrokerError:
        pass
    await stage.until(lambda: stage.hw(1) == 10, what="it is committed nevertheless")
    stage.says("Broker 1 dies. The producer sends the same batch to the new leader.")
    stage.crash(1)
    await stage.until(lambda: stage.leader() == 2 and stage.leads(2), what="broker 2 leads")
    answer = await stage.produce(2, *values, producer=producer, sequence=5)
    stage.must(
        not answer.error_code and answer.base_offset == 5, f"the response names its original offset, 5: {answer.base_offset}"
    )
    stage.must(stage.end(2) == 10, "there is one copy")
    stage.start(1)
    await stage.at_rest()


@scenario("S39", "Five batches in flight, and an old one is sent again", source="KAFKA-5494")
async def s39(stage: Stage) -> None:
    """A broker remembers the last five batches of a producer: any of them may be repeated, in any order, and is answered with its
    old offset. An older batch is a duplicate whose offset is no longer known. A batch that would leave a gap is rejected."""
    await stage.open(replicas=[1, 2, 3])
    producer = await stage.init_producer()
    for sequence in range(6):
        await stage.produce(1, b"q%d" % sequence, producer=producer, sequence=sequence)

    async def again(broker: int) -> None:
        for sequence in (3, 1, 5, 2, 4):
            answer = await stage.produce(broker, b"q%d" % sequence, producer=producer, sequence=sequence)
            stage.must((answer.error_code, answer.base_offset) == (0, sequence), f"sequence {sequence} is at {sequence} still")
        gap = await stage.produce(broker, b"gap", producer=producer, sequence=9)
        code = ErrorCode(gap.error_code)
        stage.must(code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, f"a gap is refused: {code.name}")
        stage.must(stage.end(broker) == 6, "nothing was appended")

    stage.says("Six batches are committed. The last five are sent again, in another order; then one with a gap before it.")
    await again(1)
    old = await stage.produce(1, b"q0", producer=producer, sequence=0)
    stage.must(
        old.error_code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
        and stage.end(1) == 6,
        f"an older one is not appended again: {ErrorCode(old.error_code).name}",
    )
    stage.says("Broker 1 dies, and the same happens at the new leader, which has the producer's state by replication.")
    stage.crash(1)
    await stage.until(lambda: stage.leader() == 2 and stage.leads(2), what="broker 2 leads")
    await again(2)
    answer = await stage.produce(2, b"q6", producer=producer, sequence=6)
    stage.must((answer.error_code, answer.base_offset) == (0, 6), "the next one is accepted")
    stage.start(1)
    await stage.at_rest()


@scenario("S40", "The producers' snapshot is missing, damaged or old", source="KAFKA-9892, KAFKA-12520, KAFKA-7692")
async def s40(stage: Stage) -> None:
    """A broker can rebuild its producer states from the log; a snapshot only saves time."""
    await stage.open(replicas=[1, 2, 3], segment_bytes="1024")
    producer = await stage.init_producer()
    sequence = 0

    async def write(count: int) -> None:
        nonlocal sequence
        for _ in range(count):
            answer = await stage.produce(1, b"s40-%d" % sequence + b"." * 200, producer=producer, sequence=sequence)
            stage.must(not answer.error_code, f"sequence {sequence} is accepted")
            sequence += 1

    for harm in ("missing", "empty", "damaged", "of another time"):
        stage.says(f"Segments are rolled, each with a snapshot. Broker 2 dies, and its snapshots are {harm}.")
        await write(8)
        await stage.until(lambda: stage.end(2) == sequence, what="broker 2 has all")
        stage.crash(2)
        files = stage.cluster.machines[2].files
        snapshots = sorted(path for path in files.contents("/data/orders-0/*") if path.endswith(".snapshot"))
        old = files.read(snapshots[0]) if snapshots else b""
        for path in snapshots:
            if harm == "missing":
                files.remove(path)
            else:
                data = files.read(path)
                files.write_atomic(path, {"empty": b"", "of another time": old}.get(harm, data[: len(data) // 2] + b"\xff" * 9))
        await write(2)
        stage.start(2)
        await stage.until(lambda: stage.isr() == {1, 2, 3}, what="broker 2 is back in the ISR")
        await stage.until(lambda: stage.end(2) == stage.end(1), what="broker 2 has all")
        stage.must(
            stage.replica(2).log.producers == stage.replica(1).log.producers,
            "broker 2 has the same producer state as broker 1",
        )

    stage.says("Sequences end at 2^31 - 1 and continue at 0.")
    other = await stage.init_producer()
    for number, taken in ((2**31 - 2, 2), (0, 1), (1, 1)):
        answer = await stage.produce(1, *[b"w%d" % n for n in range(taken)], producer=other, sequence=number)
        stage.must(not answer.error_code, f"sequence {number} is accepted: {ErrorCode(answer.error_code).name}")
    await stage.at_rest()
