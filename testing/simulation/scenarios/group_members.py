"""Members of consumer groups, and their commits: S98, and S101 to S110."""

from __future__ import annotations

from strandline.protocol import apis
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages import groups as messages
from strandline.testing.simulation.scenarios.classic_stage import ClassicMember
from strandline.testing.simulation.scenarios.group_stage import TOPIC, Group, Program, code_of, open_group
from strandline.testing.simulation.scenarios.stage import Stage, scenario

NONE, STALE = ErrorCode.NONE, ErrorCode.STALE_MEMBER_EPOCH


@scenario("S98", "A program is slow", source="KAFKA-9823; FastStream#1414; max.poll.interval.ms")
async def s98(stage: Stage) -> None:
    """A revocation does not wait without a limit: neither for a callback, nor for the program to finish its records. If a program
    does not ask for records for too long, its consumer leaves the group, and joins again at the next call."""
    group = await open_group(stage)
    slow = group.program("slow", callback_s={"on_revoked": 60.0}, rebalance_timeout_ms=1500, max_poll_interval_ms=4000)
    await slow.owns(0, 1)
    stage.says("Its callback takes a minute. Another member joins.")
    began = stage.world.now
    other = group.program("other")
    await stage.until(lambda: len(other.owned) == 1, what="the other member has a partition")
    stage.must(stage.world.now - began < 2.5, "it has not waited for the callback")
    stage.must("lost" not in [name for name, _ in slow.calls], "the slow member was not removed")
    stage.says("The slow program works on its records, and the other member leaves and joins again.")
    await other.stop()
    await slow.owns(0, 1)
    slow.works_on()
    await stage.append(1, index=1)
    await stage.until(lambda: slow.offsets(1), what="the slow member has a record of partition 1")
    other = group.program("other-2")
    await other.owns(1)
    stage.says("The program does not poll again, and its consumer leaves the group.")
    await other.owns(0, 1)
    stage.must(slow.owned == [], "it owns nothing")
    slow.asks_again()
    await stage.until(lambda: len(slow.owned) == len(other.owned) == 1, what="it is a member again")
    await slow.stop()
    await other.stop()
    await stage.at_rest()


@scenario("S101", "A zombie member commits", source="KIP-848, KIP-345; generation 3 commits in generation 4")
async def s101(stage: Stage) -> None:
    """A member is silent for longer than its session, and another one gets its partitions. If a later commit of the first member
    were accepted, the offset of the other one would go back."""
    group = await open_group(stage)
    first, second = group.member("first"), group.member("second")
    await group.settled(first)
    await first.store(0, 10)
    stage.says("The first member is silent until it is removed. The second one gets everything, and commits.")
    await group.answered(second.beat)
    while second.assigned != [0, 1]:
        await stage.sleep(0.2)
        await second.beat(second.assigned)
    await second.store(0, 20)
    stage.must(await code_of(first.commit({0: 15})) is ErrorCode.UNKNOWN_MEMBER_ID, "the first one is no longer a member")
    stage.must(await code_of(first.beat([0, 1])) is ErrorCode.UNKNOWN_MEMBER_ID, "and its heartbeat gets that error, too")
    stage.must(await group.committed(0) == [20], "nothing has changed")
    stage.says("A group of the classic protocol: a second member joins, and the first one commits in the generation before.")
    elders = Group(stage, "elders")
    one, two = ClassicMember(elders, "one"), ClassicMember(elders, "two")
    await elders.answered(one.join)
    await one.sync({one: [0, 1]})
    await one.store(0, 10)
    joins = [two.start(two.join())]
    await stage.until(lambda: len(elders.joining) == 1, what="the second member waits")
    joins.append(one.start(one.join()))
    for join in joins:
        await join
    await one.sync({one: [1], two: [0]})
    await two.sync({})
    await two.store(0, 20)
    stage.must(await code_of(one.commit({0: 15}, generation=1)) is ErrorCode.ILLEGAL_GENERATION, "generation 1 is over")
    stage.must(await elders.committed(0) == [20], "nothing has changed")
    await stage.at_rest()


@scenario("S102", "A member loses responses, is fenced, and joins again", source="KAFKA-19233")
async def s102(stage: Stage) -> None:
    """A member whose response was lost sends its previous epoch again. This is accepted if it owns no partition that it may not
    own; otherwise it is fenced, and joins with epoch 0. Meanwhile it counts as the owner of its partitions: no other member gets
    them."""
    group = await open_group(stage)
    first, second = group.member("first"), group.member("second")
    await group.settled(first)
    await group.answered(second.beat)
    await first.beat()
    before = first.epoch
    stage.says("The first member has given up partition 1, and loses the response with its next epoch.")
    await first.beat([0])
    after = first.epoch
    await first.beat([0], epoch=before)
    stage.must(
        (first.epoch, first.assigned) == (after, [0]), "the previous epoch is accepted, and the response has the current one"
    )
    code = await code_of(first.beat([0, 1], epoch=before))
    stage.must(code is ErrorCode.FENCED_MEMBER_EPOCH, "but not from a member that claims more partitions")
    await second.beat()
    stage.must(second.assigned == [1], "the second member has the other partition")
    stage.says("The fenced member joins again. Until then its partition is still assigned to it.")
    await first.beat(epoch=0)
    stage.must((first.epoch, first.assigned) == (after, [0]), "it has its epoch and its partition")
    await second.beat([1])
    stage.must(second.assigned == [1], "and the second one has its own")
    await group.settled(first, second)
    await stage.at_rest()


@scenario("S103", "A commit overtakes a rebalance", source="KAFKA-9823, KIP-1251")
async def s103(stage: Stage) -> None:
    """A commit is in flight while the member's epoch changes. It is accepted for a partition that the member owned in that epoch
    and still owns, and not for one that it has given up."""
    group = await open_group(stage)
    first, second = group.member("first"), group.member("second")
    await group.settled(first)
    before = first.epoch
    await group.answered(second.beat)
    await first.beat()
    stage.must(await first.commit({1: 5}) == {1: NONE}, "the member commits for a partition that it is to give up")
    await first.beat([0])
    stage.must(first.epoch > before, "it has given it up, and has the next epoch")
    codes = await first.commit({0: 6, 1: 7}, epoch=before)
    stage.must(codes == {0: NONE, 1: STALE}, "a commit of the previous epoch is accepted for the partition that it has kept")
    await second.beat()
    stage.must(second.assigned == [1], "the second member has the other one")
    stage.must(await second.committed(1) == [5], "and begins where the first one has committed")
    await second.store(1, 8)
    stage.must(await first.commit({1: 9}, epoch=before) == {1: STALE}, "a later commit of the first one is refused")
    stage.must(await group.committed(0, 1) == [6, 8], "each partition has the offset that its owner committed")
    await group.settled(first, second)
    await stage.at_rest()


@scenario("S104", "A commit is late on a connection that was given up", source="docs/bugs.md; Apache Kafka accepts it")
async def s104(stage: Stage) -> None:
    """A commit is not answered in time. The member gives up the connection, and commits on a new one. Then the first commit
    arrives. It has the present epoch, and an offset below the one that was acknowledged."""
    group = await open_group(stage)
    first = group.member("first")
    await group.settled(first)
    await first.store(0, 4)
    first.reconnect()
    await first.store(0, 6)
    stage.says("A commit of 5 arrives on the old connection.")
    code = await code_of(first.commit({0: 5}, late=True))
    stage.must(code is ErrorCode.NOT_COORDINATOR, "it is refused")
    stage.must(await group.committed(0) == [6], "the acknowledged offset stands")
    await first.store(0, 7)
    await stage.at_rest()


@scenario("S105", "A heartbeat is late on a connection that was given up", source="docs/bugs.md; Apache Kafka accepts it")
async def s105(stage: Stage) -> None:
    """A heartbeat reports that the member owns one partition. It is not answered in time, and the member sends the next one on a
    new connection. Later, in the same epoch, the member owns a second partition, and has to give it up again. If the first
    heartbeat were accepted now, the second partition would count as given up, while the member still reads it."""
    group = await open_group(stage)
    first, second = group.member("first"), group.member("second")
    await group.settled(first)
    await group.answered(second.beat)
    await first.beat()
    await first.beat([0])
    await second.beat()
    await group.settled(first, second)
    stage.says("The second member leaves, and the first one owns both partitions. A third one joins.")
    await second.leave()
    while first.assigned != [0, 1]:
        await group.answered(lambda: first.beat(first.assigned))
    await first.beat([0, 1])
    epoch, third = first.epoch, group.member("third")
    first.reconnect()
    await first.beat()
    await group.answered(third.beat)
    await first.beat([0, 1])
    stage.must((first.epoch, first.assigned) == (epoch, [0]), "the first one is to give up partition 1")
    stage.says("An older heartbeat arrives on the old connection. It says that the member owns partition 0.")
    code = await code_of(first.beat([0], epoch=epoch, late=True))
    stage.must(code is ErrorCode.NOT_COORDINATOR, "it is refused")
    await third.beat()
    stage.must(third.assigned == [], "the third member waits for the partition")
    await first.beat([0])
    await group.settled(first, third)
    await stage.at_rest()


@scenario("S106", "The log of a coordinator is compacted", source="KAFKA-17306, KAFKA-20442")
async def s106(stage: Stage) -> None:
    """Members join and leave, offsets are committed again and again, a group is deleted, and the cleaner removes superseded
    records: the log has tombstones without the records that they delete, and records without those before them. A coordinator
    that loads such a log has the groups of the previous one, and nothing of a deleted one. The assignment epoch of an empty group
    is its group epoch."""
    cleaner = {"log.cleaner.backoff.ms": 50, "log.cleaner.min.cleanable.ratio": 0.0, "log.cleaner.delete.retention.ms": 0}
    group = await open_group(stage, settings=cleaner, segment_bytes="1000")
    short = Group(stage, "short")
    for turn in range(4):
        first, second, guest = group.member(f"a{turn}"), group.member(f"b{turn}"), short.member(f"c{turn}")
        await group.settled(first, second)
        await group.answered(guest.beat)
        for offset in range(3):
            await first.store(first.assigned[0], turn * 10 + offset)
            await guest.store(0, turn * 10 + offset)
        await guest.leave()
        await first.leave()
        await second.leave()
    answer = await short.ask(apis.DELETE_GROUPS, messages.DeleteGroupsRequest([short.name]))
    stage.must(not answer.results[0].error_code, "the other group is deleted")
    stage.says("The cleaners run, and coordinators move.")
    await group.all_in_sync()
    cleaned = [group.log(broker).first_dirty_offset for broker in (1, 2, 3)]
    stage.must(any(cleaned) or stage.perturbed, "the logs are cleaned")
    for _ in range(2):
        await group.resigns()
        await group.remembers()
        described = await group.answered(group.describe)
        stage.must(described.group_state == "Empty", "the group is empty")
        stage.must(described.group_epoch == described.assignment_epoch, "its assignment epoch is its group epoch")
        deleted = await short.answered(short.describe)
        stage.must(deleted.error_code == ErrorCode.GROUP_ID_NOT_FOUND, "the deleted group is gone")
    last = group.member("last")
    await group.settled(last)
    stage.must(await last.committed(0, 1) != [-1, -1], "its offsets are there")
    await stage.at_rest()


async def _append(stage: Stage, partitions: int, count: int) -> None:
    for index in range(partitions):
        await stage.append(count, index=index)


@scenario("S107", "A member is paused for longer than its session", source="aiokafka#847; FastStream#1414")
async def s107(stage: Stage) -> None:
    """The partitions of the paused member are assigned to another one. When the paused member continues, it has records of them
    in its buffer, and does not know of the loss. It returns none of these records: it joins again, and reads its new
    partitions."""
    group = await open_group(stage)
    paused = group.program("paused", max_poll_records=1, fetch_max_wait_ms=5000)
    await paused.owns(0, 1)
    other = group.program("other")
    await stage.until(lambda: len(paused.owned) == len(other.owned) == 1, what="both have a partition")
    (ours,) = paused.owned
    stage.says("The process is paused while it waits for records. They arrive, and wait in its socket.")
    paused.client.machine.pause()
    await stage.append(3, index=ours)
    await other.owns(0, 1)
    await stage.until(lambda: len(other.offsets(ours)) == 3, what="the other member has read them")
    count = len(paused.calls)
    paused.client.machine.resume()
    await stage.until(lambda: paused.calls[count:] and paused.calls[count][0] == "lost", what="it reports them as lost")
    stage.must(not paused.offsets(ours), "it has returned no record of the partition")
    await stage.until(lambda: len(paused.owned) == len(other.owned) == 1, what="it is a member again")
    await _append(stage, 2, 2)
    await stage.until(lambda: _all_read(stage, paused, other), what="every record is read")
    await paused.stop()
    await other.stop()
    await stage.at_rest()


def _all_read(stage: Stage, *programs: Program) -> bool:
    return all(
        {offset for program in programs for offset in program.offsets(index)} == set(range(stage.hw(stage.leader(index), index)))
        for index in range(2)
    )


@scenario("S108", "A static member restarts", source="KIP-345, KIP-848; aiokafka#1188")
async def s108(stage: Stage) -> None:
    """The partitions of the static member wait for its next process: nothing moves, and that process starts at the committed
    offsets. If the first process was killed, the next one waits for the end of its session, and is not stuck."""
    group = await open_group(stage)
    static, other = group.program("static", group_instance_id="i"), group.program("other")
    await stage.until(lambda: len(static.owned) == len(other.owned) == 1, what="both have a partition")
    (ours,) = static.owned
    await stage.append(3, index=ours)
    await stage.until(lambda: len(static.offsets(ours)) == 3, what="the records are read")
    stage.says("The static member stops, and another process takes its place.")
    await static.stop()
    count = len(other.calls)
    static = group.program("static-2", group_instance_id="i")
    await static.owns(ours)
    await stage.append(2, index=ours)
    await stage.until(lambda: len(static.offsets(ours)) == 2, what="it continues")
    stage.must(static.offsets(ours) == [3, 4], "it has read nothing twice, and left nothing out")
    stage.must(other.calls[count:] == [], "nothing has happened to the other member")
    stage.says(
        "The process dies. The next one is refused until the session has ended, and tries again as a supervisor has it do."
    )
    static.client.machine.crash()
    while True:
        static = group.program("static-3", group_instance_id="i")
        await stage.until(lambda p=static: p.owned or p.task.done(), what="it is a member, or refused")  # type: ignore[misc]
        if static.owned:
            break
        await stage.sleep(0.2)
    await stage.until(lambda: len(static.owned) == len(other.owned) == 1, what="both have a partition again")
    await static.stop()
    await other.stop()
    await stage.at_rest()


@scenario("S109", "A topic is assigned before the client has its metadata", source="franz-go 1.21.6")
async def s109(stage: Stage) -> None:
    """The coordinator resolves patterns itself. So a member with a pattern may be assigned partitions of a topic that its own
    metadata does not have yet. It reads them from the beginning as soon as its metadata has their names."""
    group = await open_group(stage)
    program = group.program("program", pattern="orders|late")
    await program.owns(0, 1)
    stage.says("The member's metadata responses are held. A topic is created that matches its pattern.")
    machine = program.client.machine.id
    held = stage.hold("Metadata", target=machine, response=True)
    await stage.create("late", [[1, 2, 3]])
    stage.topic = "late"
    await stage.append(2)
    await stage.until(lambda: _is_assigned(stage, group), what="the coordinator has assigned the topic")
    held.release()
    await stage.until(lambda: any(tp.topic == "late" for tp in program.seen), what="its records are read")
    (offsets,) = [offsets for tp, offsets in program.seen.items() if tp.topic == "late"]
    stage.must(offsets[0] == 0, "from the first one on")
    await program.stop()
    await stage.at_rest()


def _is_assigned(stage: Stage, group: Group) -> bool:
    """Whether the coordinator has assigned a partition of the topic `late`."""
    active = group.shard(group.coordinator)
    found = None if active is None else active.shard.groups.get(group.name)
    topic_id = stage.cluster.topic_id("late")
    return found is not None and any(topic_id in member.current.assigned for member in found.members.values())


async def _recreate(stage: Stage, topic: str) -> None:
    async def delete() -> None:
        async with stage.client.admin() as admin:
            await admin.delete_topics([topic])

    await stage.client.run(delete())
    stage.topics.remove(topic)
    await stage.until(lambda: not stage.has(1), what="the logs are deleted")
    await stage.create(topic, [[1, 2, 3]] * 2)


@scenario("S110", "Offsets expire, and their topic is recreated", source="KAFKA-13636, KIP-516")
async def s110(stage: Stage) -> None:
    """An offset that was stored with a short retention expires, and is gone on each later coordinator, too. An offset of a topic
    that is deleted and recreated is gone with the topic, and the group reads the new topic from its beginning."""
    group = await open_group(stage, settings={"offsets.retention.check.interval.ms": 300})
    keeper = Group(stage, "keeper")
    for offset, retention_ms in ((3, -1), (4, 500)):
        wanted = [messages.OffsetCommitPartition(group.topic_id, offset - 3, offset)]
        request = messages.OffsetCommitRequest(keeper.name, -1, "", None, wanted, retention_ms)
        await keeper.answered(lambda request=request: keeper.ask(apis.OFFSET_COMMIT, request))  # type: ignore[misc]
    stage.must(await keeper.committed(0, 1) == [3, 4], "both offsets are stored")

    async def expires() -> None:
        while await keeper.answered(lambda: keeper.committed(1)) != [-1]:
            await stage.sleep(0.1)

    await expires()
    stage.must(await keeper.committed(0) == [3], "the other one is kept")
    await keeper.resigns()
    await keeper.remembers()
    stage.must(await keeper.answered(lambda: keeper.committed(0, 1)) == [3, -1], "the next coordinator has the same")
    stage.says("A member commits, and its topic is deleted and recreated.")
    first = group.member("first")
    await group.settled(first)
    await first.store(0, 9)
    await _recreate(stage, TOPIC)
    stage.must(await group.answered(lambda: group.committed(0, 1)) == [-1, -1], "the new topic has no offset")
    stage.must(await keeper.answered(lambda: keeper.committed(0, 1)) == [-1, -1], "the offsets of all groups are gone")
    await group.remembers()
    await stage.at_rest()
