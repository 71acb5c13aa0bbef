"""The environment: clocks, grey failures, operators. S54 to S56, and S90."""

from __future__ import annotations

import asyncio

from strandline.client.errors import StrandlineError
from strandline.protocol.errors import ErrorCode
from strandline.testing.simulation.kernel.disk_faults import Latency
from strandline.testing.simulation.scenarios.stage import Stage, scenario

HOUR_MS = 3_600_000
SESSION_MS = 40_000
"""The session in S90: so long that a wait for its end shows."""


@scenario("S54", "Clocks jump", source="every fleet of machines")
async def s54(stage: Stage) -> None:
    """Wall clocks are for timestamps only. Sessions, lag and waits use the monotonic clock, and a record with a timestamp of
    tomorrow must not cause the deletion of others."""
    await stage.open(
        replicas=[1, 2, 3],
        controllers=3,
        settings={"log.retention.check.interval.ms": 500},
        retention_ms=str(2 * HOUR_MS),
        segment_bytes="1024",
    )
    for _ in range(6):
        await stage.produce(1, b"t" * 400)
    await stage.until(lambda: stage.hw(2) == stage.hw(3) == 6, what="all replicas have HW 6")
    before = stage.registration()
    for node, hours in ((1, 1.0), (2, -1.0), (3, 1.0), (101, -1.0), (102, 1.0), (1, -1.5)):
        jump_ms = round(hours * HOUR_MS)
        stage.says(f"The clock of node {node} jumps by {hours:+} h.")
        stage.cluster.machines[node].wall_jump_ms += jump_ms
        await stage.append(1)
        await stage.sleep(2.0)
    now = stage.registration()
    stage.must(
        (now.leader, now.leader_epoch, set(now.isr)) == (before.leader, before.leader_epoch, set(before.isr)),
        "no leader was elected, and no replica left the ISR",
    )
    stage.says("Records arrive with timestamps that are almost an hour ahead, and one with that of tomorrow, which is refused.")
    stage.world.machine.wall_jump_ms += HOUR_MS // 4
    await stage.append(6)
    stage.world.machine.wall_jump_ms += 24 * HOUR_MS
    refused = await stage.produce(1, b"tomorrow")
    stage.must(refused.error_code == ErrorCode.INVALID_TIMESTAMP, "the one of tomorrow is refused")
    stage.world.machine.wall_jump_ms = 0
    await stage.sleep(2.0)
    stage.must(stage.replica(1).log.log_start_offset == 0, "nothing has been deleted")
    await stage.at_rest()


@scenario("S55", "Grey failures", source="Huang et al., HotOS'17")
async def s55(stage: Stage) -> None:
    """Nodes that are impaired but not dead: a slow disk, a lossy link, a one-way link. The other nodes continue, and the ISR does
    not flap."""
    lag_ms = 2000
    await stage.open(replicas=[1, 2, 3], controllers=3, settings={"replica.lag.time.max.ms": lag_ms})
    changes: list[float] = []
    seen = [stage.registration().partition_epoch]

    def look() -> None:
        now = stage.registration().partition_epoch
        if now != seen[0]:
            changes.append(stage.world.now)
            seen[0] = now

    stage.world.scheduler.after_step.append(look)

    async def writes_go_on(seconds: float, within_s: float) -> None:
        end, slowest = stage.world.now + seconds, 0.0
        while stage.world.now < end:
            began = stage.world.now

            async def once() -> None:
                leader = stage.leader()
                stage.sent += 1
                if leader > 0:
                    await stage.produce(leader, b"g%d" % stage.sent, timeout_ms=5000)

            try:
                await once()
            except StrandlineError:
                pass
            slowest = max(slowest, stage.world.now - began)
            await stage.sleep(0.1)
        stage.must(slowest < within_s, f"the slowest write took {slowest:.3f} s")

    stage.says("A follower's disk is a hundred times slower than it was.")
    disk = stage.cluster.machines[3].files
    disk.take_time(Latency())
    disk.slow(100)
    changes.clear()
    await writes_go_on(10.0, 2 * lag_ms / 1000)
    stage.must(len(changes) <= 10.0 * 1000 / lag_ms, f"the ISR changed {len(changes)} times in 10 s")
    disk.slow(1)
    disk.take_time(None)

    stage.says("The link from leader to follower loses a third of its packets.")
    for ends in ((1, 2), (2, 1)):
        stage.world.network.link(*ends).loss = 0.3
    changes.clear()
    await writes_go_on(10.0, 5.0)
    stage.must(len(changes) <= 10.0 * 1000 / lag_ms, f"the ISR changed {len(changes)} times in 10 s")
    for ends in ((1, 2), (2, 1)):
        stage.world.network.link(*ends).loss = 0.0

    stage.says("The leader's messages to one follower are lost, while the follower's messages arrive.")
    follower = next(n for n in (2, 3) if n != stage.leader())
    leader = stage.leader()
    stage.cut(leader, [follower], inbound=False)
    cut_at = stage.world.now
    await stage.append(1, acks=1)
    await stage.until(
        lambda: follower not in stage.isr() or leader not in stage.isr(), 4 * lag_ms / 1000, "the ISR is without it"
    )
    stage.must(stage.world.now - cut_at < 4 * lag_ms / 1000, "the ISR shrinks in time")
    await writes_go_on(3.0, 3.0)
    stage.mend(leader, [follower], inbound=False)

    stage.says("A broker's heartbeats do not arrive, but it receives all messages of the controllers.")
    stage.cut(3, stage.cluster.controller_ids, inbound=False)
    await stage.until(lambda: stage.cluster.image().brokers[3].fenced, 15.0, "it is fenced")
    await writes_go_on(3.0, 3.0)
    stage.mend(3, stage.cluster.controller_ids, inbound=False)
    await stage.at_rest()


@scenario("S56", "A rolling restart under load", source="every upgrade")
async def s56(stage: Stage) -> None:
    """Each node is stopped in order and started again while a client writes. No write of the client may fail."""
    await stage.open(replicas=[[1, 2, 3], [2, 3, 1], [3, 1, 2]], controllers=3)
    failed: list[str] = []
    sent = [0]
    over = [False]
    client = stage.cluster.client("load")

    async def load() -> None:
        async with client.producer() as producer:
            receipts = []
            while not over[0]:
                for index in range(3):
                    receipts.append((index, b"n%d" % sent[0], await producer.send("orders", b"n%d" % sent[0], partition=index)))
                    sent[0] += 1
                await asyncio.sleep(0.02)
            for index, value, receipt in receipts:
                try:
                    metadata = await receipt
                    stage.acked.setdefault(("orders", index), {})[metadata.offset] = value
                except StrandlineError as e:
                    failed.append(str(e))

    loading = client.spawn(load())
    for node in [*stage.cluster.broker_ids, *stage.cluster.controller_ids]:
        stage.says(f"Node {node} is stopped in order, and started again.")
        await stage.stop(node)
        await stage.sleep(0.2)
        stage.start(node)
        await stage.until(
            lambda: stage.cluster.is_ready() and all(stage.isr(i) == {1, 2, 3} for i in range(3)),
            30.0,
            "the cluster is ready, and all replicas are in sync",
        )
    over[0] = True
    await stage.world.join(loading)
    stage.must(not failed, f"{sent[0]} records sent, none failed{': ' + failed[0] if failed else ''}")
    unclean = [e for e in stage.world.trace.events(kinds=["log.logs.recovered"]) if not e.fields["clean"]]
    stage.must(not unclean, "every broker found that it had been stopped in order")
    for index in range(3):
        await stage.at_rest(index=index)


@scenario("S90", "A broker restarts while the controllers change", source="KIP-631, FailoverTest")
async def s90(stage: Stage) -> None:
    """The new active controller grants a session to a broker from which it has received no heartbeat. If that broker is dead, its
    next process must not have to wait for the end of this session."""
    await stage.open(controllers=3, controller_settings={"broker.session.timeout.ms": SESSION_MS})
    await stage.append(3)
    before = stage.cluster.image().brokers[3].broker_epoch
    active = stage.active_controller()
    stage.says(f"Broker 3 is cut off from the controllers. Controller {active} dies, and another one becomes active.")
    stage.cut(3, stage.cluster.controller_ids)
    stage.crash(active)
    await stage.until(lambda: stage.active_controller() not in (-1, active), what="another controller is active")
    await stage.sleep(2.0)
    stage.says("Broker 3 is killed, its link is mended, and it starts again.")
    stage.crash(3)
    stage.mend(3, stage.cluster.controller_ids)
    stage.start(3)
    started = stage.world.now
    await stage.until(lambda: stage.cluster.image().brokers[3].broker_epoch > before, 3 * SESSION_MS / 1000, "it is registered")
    waited_s = stage.world.now - started
    stage.must(waited_s < SESSION_MS / 2000 or stage.perturbed, f"it is registered after {waited_s:.1f} s")
    stage.start(active)
    await stage.at_rest()
