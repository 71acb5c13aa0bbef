"""Groups with a configuration of their own: S135 to S137."""

from __future__ import annotations

from strandline.testing.simulation.scenarios.group_stage import Group, Program, open_group
from strandline.testing.simulation.scenarios.stage import Stage, scenario

INTERVAL_MS, SESSION_MS, LONG_MS, SHORT_MS = 300, 2000, 6000, 1000
BOUNDS = {
    "group.consumer.heartbeat.interval.ms": INTERVAL_MS,
    "group.consumer.min.heartbeat.interval.ms": 100,
    "group.consumer.session.timeout.ms": SESSION_MS,
    "group.consumer.min.session.timeout.ms": 500,
    "group.consumer.max.session.timeout.ms": 10_000,
}
_PATIENCE = {"request_timeout_ms": 20_000}
"""Options of members: with this time-out, a member that waits for a response stops reading only at the end of its session."""


@scenario("S135", "A session is shortened, and a member does not receive it", source="KIP-848")
async def s135(stage: Stage) -> None:
    """The responses with a shorter session are lost. So the member reads its partition for the rest of the longer session, and no
    other member may get the partition before its end."""
    group = await open_group(stage, of_groups=BOUNDS)
    first, second = await _share(stage, group)
    stage.says("The session becomes shorter. The coordinator gets a heartbeat of the first member, and its response is lost.")
    coordinator, cut_off = group.coordinator, first.client.machine.id
    hold = stage.hold(
        "ConsumerGroupHeartbeat",
        source=coordinator,
        target=cut_off,
        response=True,
        where=lambda m: m.body.session_timeout_ms == SHORT_MS,
    )
    await group.configure(session_timeout_ms=SHORT_MS)
    await stage.until(lambda: hold.has, what="the response is held")
    stage.cut(cut_off)
    await _is_succeeded(stage, first, second)
    hold.release()
    stage.mend(cut_off)
    await _both_own(stage, first, second)
    await first.stop()
    await second.stop()
    await stage.at_rest()


@scenario("S136", "A session is shortened while the coordinator moves", source="KIP-848")
async def s136(stage: Stage) -> None:
    """A member relies on the session in the answers of the previous coordinator, and cannot reach the new coordinator."""
    group = await open_group(stage, of_groups=BOUNDS)
    first, second = await _share(stage, group)
    await group.all_in_sync()
    stage.says("The session becomes shorter, one member is cut off, and the coordinator dies.")
    cut_off = first.client.machine.id
    stage.cut(cut_off)
    await group.configure(session_timeout_ms=SHORT_MS)
    before = group.coordinator
    stage.crash(before)
    await stage.until(lambda: group.coordinator not in (before, -1), what="another broker leads")
    await group.moved_to(group.coordinator)
    await _is_succeeded(stage, first, second)
    stage.mend(cut_off)
    await _both_own(stage, first, second)
    await first.stop()
    await second.stop()
    stage.start(before)
    await stage.at_rest()


async def _share(stage: Stage, group: Group) -> tuple[Program, Program]:
    """Start two programs. Each owns a partition, and has received the long session."""
    await group.configure(session_timeout_ms=LONG_MS)
    first, second = group.program("first", **_PATIENCE), group.program("second", **_PATIENCE)
    await _both_own(stage, first, second)
    return first, second


async def _both_own(stage: Stage, first: Program, second: Program) -> None:
    await stage.until(lambda: sorted(first.owned + second.owned) == [0, 1] and first.owned and second.owned, what="both own one")
    await stage.sleep(3 * INTERVAL_MS / 1000)


async def _is_succeeded(stage: Stage, first: Program, second: Program) -> None:
    """The second program gets the partition of the first one, after the first one has stopped reading it."""
    await second.owns(0, 1)
    stage.must(first.state == "suspended", "the first member has stopped reading before the second one has its partition")


@scenario("S137", "A configuration applies from the next heartbeat on", source="KIP-848; scheduleConsumerGroupSessionTimeout")
async def s137(stage: Stage) -> None:
    """A longer session does not help a member that is already late. After the configuration is removed, the broker's session
    applies. A broker whose file has narrower bounds applies the nearest value within them."""
    narrow = {2: {"group.consumer.max.session.timeout.ms": 3000}}
    group = await open_group(stage, of_groups=BOUNDS, of_brokers=narrow, coordinators=(1, 2))
    late = group.member("late")
    await group.settled(late)
    began = stage.world.now
    await late.beat()
    stage.says("The member is silent, and its session becomes longer.")
    await stage.sleep(1.5)
    await group.configure(session_timeout_ms=LONG_MS)
    stage.must(await group.members() == ["late"], "its session has not ended")
    while await group.members():
        await stage.sleep(0.05)
    stage.must(stage.world.now - began < 1.3 * SESSION_MS / 1000, "it ends as if nothing had changed")
    stage.says("Another member receives the longer session, and stays a member as long.")
    member = group.member("member")
    stage.must((await group.answered(member.beat)).session_timeout_ms == LONG_MS, "it receives the longer session")
    await stage.sleep(0.85 * LONG_MS / 1000)
    stage.must(await group.members() == ["member"], "it is a member for as long")
    stage.says("The configuration is removed.")
    await group.configure(session_timeout_ms=None)
    await member.beat(member.assigned)
    answer = await member.beat()
    stage.must(answer.session_timeout_ms == SESSION_MS, "it receives the broker's session")
    await stage.sleep(0.8 * SESSION_MS / 1000)
    stage.must(await group.members() == ["member"], "its session has not ended")
    await stage.sleep(0.5 * SESSION_MS / 1000)
    stage.must(await group.members() == [], "and it ends after the time of the broker's session")
    stage.says("The configuration file of the next coordinator allows only shorter sessions.")
    await group.configure(session_timeout_ms=LONG_MS)
    await stage.until(lambda: len(group.isr()) == 2, what="both brokers are in the ISR")
    group.resign(1)
    await group.moved_to(2)
    answer = await group.answered(group.member("guest").beat)
    stage.must(answer.session_timeout_ms == 3000, "the longest session that it allows applies")
    await stage.at_rest()
