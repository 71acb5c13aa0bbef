"""Truncation and divergence: S01 to S12."""

from __future__ import annotations

from strandline.testing.simulation.scenarios.stage import Stage, scenario


@scenario("S03", "Fast fail-over fork: the leader lacks the asked epoch", source="KIP-279, KAFKA-6361")
async def s03(stage: Stage) -> None:
    """Two fail-overs in a row leave three logs of which no two agree about what came after offset 9. The last leader does not
    know the epoch that the returning one asks about, and must answer with the largest that it does know."""
    await stage.open(replicas=[1, 2, 3])
    stage.says("Broker 1 leads in epoch 0. Ten records are on all three replicas, and acknowledged.")
    await stage.append(10)
    await stage.until(lambda: {stage.hw(n) for n in (1, 2, 3)} == {10}, what="all know HW 10")

    stage.says("Broker 1 appends two more. Only broker 3 fetches them: what broker 2 would hear of them is held back.")
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
    stage.must(stage.end(3) == 13, "broker 3 goes on at offset 12")
    third_epoch = stage.registration().leader_epoch
    stage.must(stage.epochs(3) == [(first_epoch, 0), (third_epoch, 12)], f"broker 3 knows nothing of epoch {second_epoch}")

    stage.says(
        f"Broker 2 returns and fetches from 12, saying that its last record is of epoch {second_epoch}. Broker 3 never heard of "
        f"that epoch, so it answers with the largest below it: epoch {first_epoch}, which ended at 12. Broker 2 cuts its log "
        f"where its own epoch {first_epoch} ended, at 10, and asks again."
    )
    stage.start(2)
    await stage.until(lambda: stage.end(2) == 13, what="broker 2 has 13 records")
    stage.must(stage.log_bytes(2) == stage.log_bytes(3), "broker 2's log is broker 3's, byte for byte")
    stage.must(second_epoch not in dict(stage.epochs(2)), f"nothing of epoch {second_epoch} is left on broker 2")

    stage.says("The network is whole again. Broker 1 follows, and nothing that was acknowledged is missing anywhere.")
    stage.mend(1)
    await stage.at_rest()
