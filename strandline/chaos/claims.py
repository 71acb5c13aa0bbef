"""The claims of `expect`: what must hold at this point of a scenario. Each is checked against the running cluster."""

from __future__ import annotations

import asyncio
from collections import Counter
from time import perf_counter

from strandline.chaos import probes
from strandline.chaos.load import NotInTime, until
from strandline.chaos.probes import PARTITION, Answer, Prober
from strandline.chaos.report import STEP
from strandline.chaos.run_state import RunState
from strandline.chaos.scenario import Step
from strandline.chaos.watch import Peer, partitions_according_to
from strandline.client import Admin
from strandline.protocol.errors import StrandlineError
from strandline.reach import reach
from strandline.testing.history import OK

RETRY_S = 0.1


class Claims:
    def __init__(self, state: RunState) -> None:
        self._state = state
        self._probers: dict[str, list[Prober]] = {}
        """Broker name -> the probers that send to it now."""
        self._accepted: list[Answer] = []
        """Acknowledged records that an `accepts` claim of this scenario wrote."""

    async def check(self, step: Step) -> None:
        await getattr(self, f"_{step.kind.replace('-', '_')}")(step)

    async def stop(self) -> None:
        for prober in [p for probers in self._probers.values() for p in probers]:
            await prober.stop(0)

    def start_probe(self, step: Step) -> None:
        (name,) = self._state.resolve(step["target"])
        prober = self._prober(name, step["acks"])
        self._probers.setdefault(name, []).append(prober)
        prober.start(step["every_s"])
        text = f"raw produce requests with acks={step['acks']} go straight to {name}, every {step['every_s']:g} s"
        self._state.log(STEP, text, step=step.number)

    def _prober(self, name: str, acks: str) -> Prober:
        state = self._state
        return Prober(Peer(state.driver.member(name), "chaos-probe"), state.watch.picture, state.load.history, acks)

    # -- raw requests

    async def _not_acknowledged(self, step: Step) -> None:
        (name,) = self._state.resolve(step["target"])
        probers = self._probers.pop(name, [])
        if not probers:
            raise NotInTime(f'no probe runs against {name}; add a step with do = "probe" before this claim')
        for prober in probers:
            unanswered = await prober.stop(step["within_s"])
            answers = Counter(a.text for a in prober.answers)
            seen = ", ".join(f"{count} x {text}" for text, count in answers.most_common())
            if unanswered:
                seen += f", {unanswered} without an answer"
            ok = bool(prober.answers) and not unanswered and not any(a.is_acknowledged for a in prober.answers)
            claim = f"{name} acknowledges none of {prober.sent} requests with acks={prober.acks}"
            self._state.log_claim(step.number, claim, ok, seen or "none was sent")

    async def _refuses(self, step: Step) -> None:
        """Send until the broker answers with this error. An acknowledgement breaks the claim at once."""
        (name,) = self._state.resolve(step["target"])
        prober = self._prober(name, step["acks"])
        answer = await prober.send()
        deadline = perf_counter() + step["within_s"]
        while answer.text != step["error"] and not answer.is_acknowledged and perf_counter() < deadline:
            await asyncio.sleep(RETRY_S)
            answer = await prober.send()
        prober.peer.close()
        claim = f"{name} refuses acks={step['acks']} with {step['error']}"
        self._state.log_claim(step.number, claim, answer.text == step["error"], answer.text)

    async def _accepts(self, step: Step) -> None:
        (name,) = self._state.resolve(step["target"])
        prober = self._prober(name, step["acks"])
        answer = await prober.send()
        prober.peer.close()
        if answer.is_acknowledged:
            self._accepted.append(answer)
        seen = f"{answer.text} at offset {answer.offset}" if answer.is_acknowledged else answer.text
        self._state.log_claim(step.number, f"{name} accepts acks={step['acks']}", answer.is_acknowledged, seen)

    # -- reading

    async def _invisible(self, step: Step) -> None:
        state = self._state
        (name,) = state.resolve(step["target"])
        peer = Peer(state.driver.member(name))
        try:
            high_watermark = await probes.high_watermark(peer, state.watch.picture, PARTITION)
        finally:
            peer.close()
        read = {value for _, value in (await state.load.read_all(30))[PARTITION]}
        below = [a.offset for a in self._accepted if a.offset < high_watermark]
        shown = [a for a in self._accepted if a.value in read]
        ok = bool(self._accepted) and not below and not shown
        offsets = ", ".join(str(a.offset) for a in self._accepted)
        seen = (
            f"accepted at offset {offsets}; high watermark {high_watermark}; {len(shown)} of them among {len(read)} records read"
        )
        state.log_claim(step.number, "accepted records are not visible", ok, seen)

    async def _visible(self, step: Step) -> None:
        found: set[tuple[int, bytes]] = set()

        async def all_read() -> bool:
            found.update((await self._state.load.read_all(step["within_s"]))[PARTITION])
            return all((a.offset, a.value) in found for a in self._accepted)

        try:
            await until(all_read, "every accepted record is read", step["within_s"])
        except StrandlineError:
            pass  # the claim reports it
        missing = [a.offset for a in self._accepted if (a.offset, a.value) not in found]
        ok = bool(self._accepted) and not missing
        seen = f"missing at offsets {missing}" if missing else f"{len(self._accepted)} of {len(self._accepted)} were read"
        self._state.log_claim(step.number, "accepted records are visible", ok, seen)

    async def _gone(self, step: Step) -> None:
        read = {value for _, value in (await self._state.load.read_all(30))[PARTITION]}
        kept = [a.offset for a in self._accepted if a.value in read]
        seen = f"{len(self._accepted) - len(kept)} of {len(self._accepted)} were lost"
        self._state.log_claim(step.number, "accepted records are gone", bool(self._accepted) and not kept, seen)

    async def _reads_go_on(self, step: Step) -> None:
        """A consumer that starts now reads every record acknowledged before."""
        load = self._state.load
        acked = {(s.partition, s.offset, s.value) for s in load.history.sends if s.outcome == OK}
        found = {(p, o, v) for p, records in (await load.read_all(step["within_s"])).items() for o, v in records}
        missing = len(acked - found)
        seen = f"{len(found)} records read, {missing} of {len(acked)} acknowledged ones missing"
        self._state.log_claim(step.number, "reads go on", bool(acked) and not missing, seen)

    async def _loss_reported(self, step: Step) -> None:
        """Declare the reported ranges in the history. The verdict at the end still finds a loss outside of them."""
        state = self._state
        async with Admin(**reach(state.driver.bootstrap)) as admin:
            reports = await admin.describe_unclean_elections([state.topic])
        for report in reports:
            state.load.history.loss(report.partition.partition, report.lost_from, report.lost_to)
        ranges = [
            f"{r.partition.partition}: {r.lost_from} to {'the end' if r.lost_to is None else r.lost_to - 1}"
            for r in reports
            if r.is_loss_possible
        ]
        ok = {r.partition.partition for r in reports} == set(state.load.acked_at)
        seen = f"may be lost: {'; '.join(ranges) or 'nothing'}" if reports else "there is no report"
        state.log_claim(step.number, "the unclean election has a report", ok, seen)

    # -- the rest

    async def _still_believes(self, step: Step) -> None:
        state = self._state
        (name,) = state.resolve(step["target"])
        member, before = state.driver.member(name), state.led_before.get(name, -1)
        peer = Peer(member)
        try:
            believed = (await partitions_according_to(peer, state.topic))[PARTITION]
        finally:
            peer.close()
        newest = state.watch.picture.partitions[PARTITION]
        ok = believed.leader == member.id and believed.leader_epoch == before < newest.leader_epoch
        present = f"present: leader {newest.leader}, leader epoch {newest.leader_epoch}"
        seen = f"its metadata: leader {believed.leader}, leader epoch {believed.leader_epoch}; {present}"
        state.log_claim(step.number, f"{name} still believes that it leads", ok, seen)

    async def _log_dir_offline(self, step: Step) -> None:
        state = self._state
        (name,) = state.resolve(step["target"])
        found: list[str] = []

        async def logged() -> bool:
            lines = await state.driver.log_since_start(name)
            found[:] = [str(line.get("reason", "")) for line in lines if line.get("event") == "log_dir.offline"]
            return bool(found)

        try:
            await until(logged, "the broker logs it", step["within_s"])
        except StrandlineError:
            pass  # the claim reports it
        state.log_claim(
            step.number, f"{name} takes its log directory offline", bool(found), found[0] if found else "it did not log this"
        )

    async def _registered_anew(self, step: Step) -> None:
        state = self._state
        (name,) = state.resolve(step["target"])
        (broker_id,) = state.ids([name])
        before, epochs = state.epochs_before.get(broker_id, -1), state.watch.picture.broker_epochs
        try:
            await until(lambda: epochs.get(broker_id, -1) > before, "it registers", step["within_s"])
        except StrandlineError:
            pass  # the claim reports it
        now = epochs.get(broker_id, -1)
        state.log_claim(step.number, f"{name} registered again", now > before, f"broker epoch {before} -> {now}")

    async def _gap_below(self, step: Step) -> None:
        gap_ms = self._state.longest_gap_ms()
        limit_ms = step["seconds"] * 1000
        self._state.log_claim(step.number, f"no gap above {limit_ms:g} ms", gap_ms <= limit_ms, f"the longest is {gap_ms:g} ms")
