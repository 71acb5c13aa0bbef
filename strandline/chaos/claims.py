"""The claims of `expect`: what must hold at this point of a scenario, shown by asking."""

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
from strandline.chaos.watch import Peer, partitions_as_told
from strandline.protocol.errors import StrandlineError
from strandline.testing.history import OK

RETRY_S = 0.1


class Claims:
    def __init__(self, state: RunState) -> None:
        self._state = state
        self._probers: dict[str, list[Prober]] = {}
        """Those at work, by the broker that they ask."""
        self._accepted: list[Answer] = []
        """Records that a claim of this scenario had written."""

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
            raise NotInTime(f'nobody probes {name}; a step with do = "probe" comes before')
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
        """Until it is so; an acknowledgement breaks the claim at once."""
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
        seen = f"at offset {offsets}, high watermark {high_watermark}, {len(read)} records read, {len(shown)} of these among them"
        state.log_claim(step.number, "what was accepted is not visible", ok, seen)

    async def _visible(self, step: Step) -> None:
        found: set[tuple[int, bytes]] = set()

        async def all_read() -> bool:
            found.update((await self._state.load.read_all(step["within_s"]))[PARTITION])
            return all((a.offset, a.value) in found for a in self._accepted)

        try:
            await until(all_read, "what was accepted is read", step["within_s"])
        except StrandlineError:
            pass  # told by the claim
        missing = [a.offset for a in self._accepted if (a.offset, a.value) not in found]
        ok = bool(self._accepted) and not missing
        seen = f"missing at offsets {missing}" if missing else f"{len(self._accepted)} of {len(self._accepted)} are read"
        self._state.log_claim(step.number, "what was accepted is visible", ok, seen)

    async def _gone(self, step: Step) -> None:
        read = {value for _, value in (await self._state.load.read_all(30))[PARTITION]}
        kept = [a.offset for a in self._accepted if a.value in read]
        seen = f"{len(self._accepted) - len(kept)} of {len(self._accepted)} are lost"
        self._state.log_claim(step.number, "what was accepted is gone", bool(self._accepted) and not kept, seen)

    async def _reads_go_on(self, step: Step) -> None:
        """Whatever was acknowledged before is read by a consumer that begins now."""
        load = self._state.load
        acked = {(s.partition, s.offset, s.value) for s in load.history.sends if s.outcome == OK}
        found = {(p, o, v) for p, records in (await load.read_all(step["within_s"])).items() for o, v in records}
        missing = len(acked - found)
        seen = f"{len(found)} records read, {missing} of {len(acked)} acknowledged ones missing"
        self._state.log_claim(step.number, "reads go on", bool(acked) and not missing, seen)

    # -- the rest

    async def _still_believes(self, step: Step) -> None:
        state = self._state
        (name,) = state.resolve(step["target"])
        member, before = state.driver.member(name), state.led_before.get(name, -1)
        peer = Peer(member)
        try:
            believed = (await partitions_as_told(peer, state.topic))[PARTITION]
        finally:
            peer.close()
        newest = state.watch.picture.partitions[PARTITION]
        ok = believed.leader == member.id and believed.leader_epoch == before < newest.leader_epoch
        others = f"the others {newest.leader} and {newest.leader_epoch}"
        seen = f"it says leader {believed.leader}, leader epoch {believed.leader_epoch}; {others}"
        state.log_claim(step.number, f"{name} still believes that it leads", ok, seen)

    async def _log_dir_offline(self, step: Step) -> None:
        state = self._state
        (name,) = state.resolve(step["target"])
        found: list[str] = []

        async def said() -> bool:
            lines = await state.driver.log_since_start(name)
            found[:] = [str(line.get("reason", "")) for line in lines if line.get("event") == "log_dir.offline"]
            return bool(found)

        try:
            await until(said, "it is said", step["within_s"])
        except StrandlineError:
            pass  # told by the claim
        state.log_claim(
            step.number, f"{name} takes its log directory offline", bool(found), found[0] if found else "it did not say so"
        )

    async def _registered_anew(self, step: Step) -> None:
        state = self._state
        (name,) = state.resolve(step["target"])
        (broker_id,) = state.ids([name])
        before, epochs = state.epochs_before.get(broker_id, -1), state.watch.picture.broker_epochs
        try:
            await until(lambda: epochs.get(broker_id, -1) > before, "it registers", step["within_s"])
        except StrandlineError:
            pass  # told by the claim
        now = epochs.get(broker_id, -1)
        state.log_claim(step.number, f"{name} registered anew", now > before, f"broker epoch {before} -> {now}")

    async def _gap_below(self, step: Step) -> None:
        gap_ms = self._state.longest_gap_ms()
        limit_ms = step["seconds"] * 1000
        self._state.log_claim(step.number, f"no gap above {limit_ms:g} ms", gap_ms <= limit_ms, f"the longest is {gap_ms:g} ms")
