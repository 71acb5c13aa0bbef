"""Disks that lose, rot, fill up and lie: S41 to S46."""

from __future__ import annotations

import errno

from strandline.client.errors import RequestFailed
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.testing.simulation.kernel.disk import SimFiles
from strandline.testing.simulation.scenarios.stage import Stage, scenario

LOG = "/data/orders-0/00000000000000000000.log"


def _disk(stage: Stage, broker: int) -> SimFiles:
    return stage.cluster.machines[broker].files


async def _return(stage: Stage, broker: int) -> None:
    """Start the broker, and wait until it is back in the ISR with all records."""
    stage.start(broker)
    await stage.until(lambda: stage.isr() == {1, 2, 3} and stage.end(broker) == stage.end(1), what=f"broker {broker} is back")


@scenario("S41", "A torn tail", source="LogLoaderTest; every system that writes")
async def s41(stage: Stage) -> None:
    """After a power cut the last batch is there in part, or as zeros, or as noise. Recovery keeps exactly the whole batches
    before it."""
    await stage.open(replicas=[1, 2, 3])
    await stage.append(3)
    await stage.until(lambda: stage.end(2) == 3, what="broker 2 has three records")
    before = len(_disk(stage, 2).read(LOG))
    await stage.append(1)
    await stage.until(lambda: stage.end(2) == 4, what="broker 2 has four records")
    random = stage.world.stream("s41")
    for harm in ("cut off", "zeros", "noise"):
        stage.says(f"Broker 2 dies while it writes its fourth record: the record is written in part, and the rest is {harm}.")
        for _ in range(6):
            stage.crash(2)
            await stage.until(lambda: stage.isr() == {1, 3}, what="broker 2 is out")
            disk = _disk(stage, 2)
            whole = disk.read(LOG)
            keep = random.randrange(before, len(whole))
            rest = len(whole) - keep
            tail = {"cut off": b"", "zeros": bytes(rest), "noise": random.randbytes(rest)}[harm]
            if whole[:keep] + tail != whole:
                _overwrite(disk, LOG, whole[:keep] + tail)
                recovered: list[int] = []
                stage.start(2)
                await stage.until(lambda: stage.has(2), what="broker 2 has opened its log")
                recovered.append(stage.end(2))
                stage.must(recovered[0] in (3, 4), f"recovery finds three whole records: {recovered[0]}")
            else:
                stage.start(2)
            await stage.until(lambda: stage.isr() == {1, 2, 3} and stage.end(2) == 4, what="broker 2 is back")
            stage.must(stage.log_bytes(2) == stage.log_bytes(1), "it has the same records as broker 1")


def _overwrite(disk: SimFiles, path: str, data: bytes) -> None:
    file = disk.open(path, create=True)
    file.truncate(0)
    file.append([data])
    file.fsync()


@scenario("S42", "A damaged batch in the middle", source="FAST'17; nats-io/nats-server#7549")
async def s42(stage: Stage) -> None:
    """Bits flip in records that were committed long ago. A broker must not send bad bytes anywhere, nor drop the good records
    after them."""
    await stage.open(replicas=[1, 2, 3])
    await stage.append(30)
    await stage.until(lambda: stage.end(2) == stage.end(3) == 30, what="all have thirty records")
    bad = len(_disk(stage, 1).read(LOG)) // 2
    good = stage.values(1)

    stage.says("A follower is restarted after a crash, and finds that a batch in the middle of its log is damaged.")
    stage.crash(3)
    _disk(stage, 3).rot(LOG, offsets=range(bad, bad + 30))
    await _return(stage, 3)
    stage.must(stage.values(3) == good, "it has fetched the good ones from its leader")

    stage.says("Now a bit flips on the leader's disk, and its page cache is gone. A consumer reads from the beginning.")
    disk = _disk(stage, 1)
    value = disk.read(LOG).find(good[20])
    disk.rot(LOG, offsets=range(value, value + len(good[20])))
    stage.replica(1).log.tail.clear()
    read = await _read_all(stage, 1)
    wrong = [offset for offset, value in read if good[offset] != value]
    stage.must(not wrong, f"no bad byte is served: {wrong}")
    stage.says("Broker 1 is stopped by its operator, and started again.")
    stage.crash(1)
    await stage.until(lambda: stage.leader() in (2, 3), what="another leads")
    await _return_to(stage, 1)
    stage.must(stage.values(1) == good, "broker 1 has the good records again, all thirty")


async def _read_all(stage: Stage, broker: int) -> list[tuple[int, bytes]]:
    """The records of the broker, from the first one to the last one that it serves."""
    read: list[tuple[int, bytes]] = []
    for _ in range(100):
        try:
            answer, records = await stage.fetch(broker, read[-1][0] + 1 if read else 0)
        except BrokerError:
            break
        if answer.error_code or not records:
            break
        read += records
    return read


async def _return_to(stage: Stage, broker: int) -> None:
    stage.start(broker)
    await stage.until(
        lambda: stage.isr() == {1, 2, 3} and stage.end(broker) == stage.end(stage.leader()), what=f"broker {broker} is back"
    )


@scenario("S43", "Index files are missing, empty, cut or of another log", source="LogLoaderTest")
async def s43(stage: Stage) -> None:
    """An index can be rebuilt from its log. It must never lead a reader past the offset that the reader looks for."""
    await stage.open(replicas=[1, 2, 3], segment_bytes="4096", index_interval_bytes="64")
    for n in range(30):
        await stage.produce(1, b"%03d" % n + b"." * 300)
    await stage.until(lambda: stage.end(2) == 30, what="broker 2 has thirty records")
    random = stage.world.stream("s43")
    good = stage.values(1)
    for harm in ("missing", "empty", "zeros", "cut", "noise", "another's"):
        stage.says(f"Broker 2 stops, {'dies' if harm == 'noise' else 'in order'}; its indexes are {harm}.")
        if harm == "noise":
            stage.crash(2)
        else:
            await stage.stop(2)
        disk = _disk(stage, 2)
        indexes = sorted(path for path in disk.contents("/data/orders-0/*") if path.endswith(("index",)))
        stage.must(indexes, "there are indexes")
        other = disk.read(indexes[-1])
        for path in indexes:
            data = disk.read(path)
            changed = {"empty": b"", "zeros": bytes(len(data)), "cut": data[:-3], "noise": random.randbytes(len(data))}
            if harm == "missing":
                disk.remove(path)
            else:
                _overwrite(disk, path, changed.get(harm, other))
        await _return(stage, 2)
        for offset in (0, 7, 15, 29):
            _, read = await stage.fetch(2, offset)
            stage.must(read and read[0] == (offset, good[offset]), f"broker 2 finds offset {offset}")


@scenario("S44", "Checkpoints after a crash", source="KAFKA-16541, KAFKA-10101")
async def s44(stage: Stage) -> None:
    """The checkpoint files are empty, half written, old, or ahead of the log. The broker relies on the log itself."""
    await stage.open(replicas=[1, 2, 3])
    await stage.append(12)
    await stage.until(lambda: stage.hw(2) == 12, what="broker 2 has HW 12")
    names = ("replication-offset-checkpoint", "recovery-point-offset-checkpoint", "orders-0/leader-epoch-checkpoint")
    ahead = {
        names[0]: b"0\n1\norders 0 100\n",
        names[1]: b"0\n1\norders 0 100\n",
        names[2]: b"0\n2\n0 0\n7 60\n",
    }
    for harm in ("missing", "empty", "half written", "ahead of the log", "noise"):
        stage.says(f"Broker 2 dies; its checkpoints are {harm}.")
        stage.crash(2)
        disk = _disk(stage, 2)
        for name in names:
            path = f"/data/{name}"
            data = disk.read(path) if disk.exists(path) else b""
            if harm == "missing":
                disk.remove(path)
            else:
                _overwrite(
                    disk,
                    path,
                    {"empty": b"", "half written": data[: len(data) // 2], "noise": b"\xff\x00x"}.get(harm, ahead[name]),
                )
        await _return(stage, 2)
        log = stage.replica(2).log
        stage.must(log.high_watermark <= log.log_end_offset == 12, f"HW {log.high_watermark} <= LEO {log.log_end_offset}")
        stage.must(log.recovery_point <= log.log_end_offset, "the recovery point is not beyond the end")
        starts = [start for _, start in log.epochs.entries]
        stage.must(
            log.epochs.entries[0] == (0, 0) and starts == sorted(starts), f"the epochs are the log's: {log.epochs.entries}"
        )
        stage.must(max(starts) <= 12, "no epoch begins beyond the end")


@scenario("S45", "The disk is full in the middle of a batch", source="KAFKA-10778")
async def s45(stage: Stage) -> None:
    """Half a batch must not stay in the log, nor be read, nor be followed by other batches; and another broker has to lead."""
    await stage.open(replicas=[1, 2, 3])
    await stage.append(5)
    await stage.until(lambda: stage.hw(2) == 5, what="all replicas have HW 5")
    stage.says("There is room for a hundred bytes on the leader's disk. A batch of two thousand bytes arrives.")
    _disk(stage, 1).fill(100)
    try:
        answer = await stage.produce(1, b"z" * 2000)
        stage.must(answer.error_code, f"it is refused: {ErrorCode(answer.error_code).name}")
    except BrokerError as e:
        stage.must(True, f"the connection ends: {e.code.name}")
    await stage.until(lambda: stage.leader() in (2, 3), 15.0, "leadership moves away")
    read = await _read_all(stage, stage.leader())
    stage.must([offset for offset, _ in read] == [0, 1, 2, 3, 4], "what was committed is there, and nothing of the batch")
    stage.says("The operator frees disk space and restarts broker 1.")
    await stage.until(lambda: not stage.cluster.machines[1].is_up, 30.0, "broker 1 has ended its process")
    _disk(stage, 1).free()
    stage.start(1)
    await stage.at_rest()


@scenario("S46", "fsync fails once, and then succeeds", source="PostgreSQL's fsyncgate")
async def s46(stage: Stage) -> None:
    """After a failed fsync the kernel may have dropped the pages, even if the next fsync succeeds. So the first failure is final
    for this directory, on a broker as on a controller."""
    await stage.open(replicas=[1, 2, 3], controllers=3, flush_messages="1")
    await stage.append(3)
    stage.says("On the leader's disk one fsync of the log fails, once.")
    _disk(stage, 1).fail_next("fsync", "*orders-0*", errno.EIO)
    try:
        answer = await stage.produce(1, b"not durable")
        stage.must(answer.error_code, f"the write fails: {ErrorCode(answer.error_code).name}")
    except BrokerError as e:
        stage.must(True, f"the connection ends: {e.code.name}")
    await stage.until(lambda: stage.leader() in (2, 3), 15.0, "another leads")
    await stage.until(lambda: not stage.cluster.machines[1].is_up, 30.0, "broker 1 has ended its process")
    stage.start(1)
    await stage.at_rest()

    stage.says("On the active controller's disk one fsync of the metadata log fails, once.")
    active = stage.cluster.active_controller
    assert active is not None
    node = active.config.node_id
    _disk(stage, node).fail_next("fsync", "*__cluster_metadata*", errno.EIO)
    try:
        await stage.create("payments", [[1, 2, 3]])
    except RequestFailed as e:  # The response was lost, and the client repeated its request.
        stage.must(e.code == ErrorCode.TOPIC_ALREADY_EXISTS, f"the topic is created: {e}")
        stage.topics.append("payments")
    stage.must(stage.cluster.topic_id("payments"), "the topic exists nevertheless")
    await stage.until(lambda: not stage.cluster.machines[node].is_up, 30.0, f"controller {node} has ended its process")
    stage.start(node)
    await stage.at_rest()
