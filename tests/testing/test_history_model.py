"""Random histories of a partition that keeps every promise, among all that may happen to it, are good; and when the same
partition breaks one, the checker says which.

The model is a list of committed records. Around it clients send with different promises, acknowledgements are late or get lost,
retries of producers that are not idempotent are appended twice, followers lag, consumers seek and start again, the log's
beginning is deleted, its end is lost in unclean elections, and leaders change. Half of the partitions are compacted: records have
keys, tombstones delete them, and a cleaner removes what is superseded. All of that is declared, as a test would.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from strandline.testing.history import History, Send, check

P = (b"\x07" * 16, 3)
SEEDS = 300
STEPS = 250


class Model:
    """One partition and its clients. Every step takes some time, so that no two things happen at once by accident."""

    def __init__(self, seed: int, *, losses: bool = True, compacted: bool | None = None) -> None:
        self.draw = Random(seed)
        self.time = 0.0
        self.history = History(lambda: self.time)
        self.log: list[Any] = []
        self.log_start = 0
        self.epoch = 1
        self.number = 0
        self.queues: dict[str, list[Send]] = {f"p{n}": [] for n in range(3)}
        """Sends of idempotent producers that are not appended yet, in the order in which they will be."""
        self.flying: list[tuple[Send, int, int]] = []
        """Sends that are appended and not answered, with the offset and the epoch of the leader that will acknowledge them."""
        self.asked: list[tuple[str, float, int]] = []
        """Open requests for the end of the log: the client, the time of the request, and the answer."""
        self.readers: dict[str, int] = {}
        self.losses = losses
        self.keys = Random(f"{seed}/keys")
        """Random numbers for everything about compaction, so that the other draws do not depend on it."""
        self.is_compacted = self.keys.random() < 0.5 if compacted is None else compacted
        self.shape: dict[Any, tuple[bytes, bool]] = {}
        """The key of each value, and whether it is a tombstone."""
        self.removed: set[int] = set()
        """Offsets of the records that the cleaner has removed."""
        self.clean_end = 0
        """The end of the part that was cleaned."""
        if self.is_compacted:
            self.history.compacted(P)

    def run(self) -> History:
        steps = [
            (30, self.send), (30, self.append), (25, self.answer), (30, self.poll), (5, self.seek), (3, self.restart_reader),
            (6, self.ask), (6, self.answer_latest), (3, self.change_leader), (3, self.see_epoch), (1, self.delete),
            (1 if self.losses else 0, self.lose), (8, self.send_loosely), (6, self.send_with_acks_1),
        ]  # fmt: skip
        weights = [self.draw.random() * weight for weight, _ in steps]
        for _ in range(STEPS):
            self.time += self.draw.choice((0.001, 0.01, 0.5))
            self.draw.choices(steps, weights)[0][1]()
            if self.is_compacted and self.keys.random() < 0.05:
                self.clean()
        self.end()
        return self.history

    def value(self) -> bytes:
        self.number += 1
        return b"%d" % self.number

    # -- producers

    def invoke(self, name: str, partition: object, **options: Any) -> Send:
        value = self.value()
        shape: dict[str, Any] = {}
        if self.is_compacted:
            shape = {"key": b"k%d" % self.keys.randrange(5), "tombstone": self.keys.random() < 0.2}
            self.shape[value] = (shape["key"], shape["tombstone"])
        return self.history.invoke(name, partition, value, **shape, **options)

    def send(self) -> None:
        name = self.draw.choice(list(self.queues))
        self.queues[name].append(self.invoke(name, self.draw.choice((P, P, None))))

    def append(self) -> None:
        queue = self.queues[self.draw.choice(list(self.queues))]
        if not queue:
            return
        send = queue.pop(0)
        fate = self.draw.random()
        if fate < 0.1:
            send.fail()
        elif fate < 0.2:
            send.info()  # given up before it was sent
        else:
            self.commit(send)

    def commit(self, send: Send) -> None:
        self.flying.append((send, len(self.log), self.epoch))
        self.log.append(send.value)

    def answer(self) -> None:
        if not self.flying:
            return
        send, offset, epoch = self.flying.pop(self.draw.randrange(len(self.flying)))
        if self.draw.random() < 0.2:
            send.info()
        else:
            send.ok(offset, partition=P, leader_epoch=self.draw.choice((epoch, None)))

    def send_loosely(self) -> None:
        """Send without idempotence: sometimes both attempts are appended."""
        send = self.invoke("loose", P, idempotent=False)
        if self.draw.random() < 0.3:
            self.log.append(send.value)
        self.commit(send)

    def send_with_acks_1(self) -> None:
        """Send a record that a leader acknowledges alone; its tail may be lost with it."""
        send = self.invoke("fast", P, acks=1)
        send.ok(len(self.log))
        if self.draw.random() < 0.5:
            self.log.append(send.value)

    # -- consumers

    def poll(self) -> None:
        reader = self.draw.choice(("r0", "r1", "r2"))
        began = self.time
        first = max(self.readers.get(reader, 0), self.log_start)
        follower = reader == "r2"
        end = self.draw.randint(0, len(self.log)) if follower else len(self.log)
        count = self.draw.randint(0, 8)
        records = [(o, v) for o, v in enumerate(self.log) if first <= o < end and o not in self.removed][:count]
        self.time += 0.001
        if records or self.draw.random() < 0.5:
            self.history.poll(reader, P, records, began_at=began, follower=follower)
        if records:
            self.readers[reader] = records[-1][0] + 1

    def seek(self) -> None:
        reader, offset = self.draw.choice(("r0", "r1")), self.draw.randint(self.log_start, len(self.log))
        self.readers[reader] = offset
        if self.draw.random() < 0.5:
            self.history.seek(reader, P, offset)
        else:
            self.history.rebalance(reader)

    def restart_reader(self) -> None:
        self.history.rebalance("r2")
        self.readers["r2"] = self.log_start

    def ask(self) -> None:
        self.asked.append((f"c{len(self.asked)}", self.time, len(self.log)))

    def answer_latest(self) -> None:
        """Answer the oldest request for the end of the log. The response was correct at some moment between request and
        response."""
        if self.asked:
            name, began, end = self.asked.pop(0)
            self.history.latest(name, P, end, began_at=began)

    # -- the cluster

    def change_leader(self) -> None:
        self.epoch += 1

    def see_epoch(self) -> None:
        self.history.saw_epoch("c", P, self.epoch)

    def delete(self) -> None:
        self.log_start = self.draw.randint(self.log_start, len(self.log))
        self.history.log_start(P, self.log_start)

    def clean(self) -> None:
        """Run one round of the cleaner, up to some offset: it removes superseded records, and sometimes the tombstones, too."""
        end = self.keys.randint(0, len(self.log))
        self.clean_end = max(self.clean_end, end)
        drops_tombstones = self.keys.random() < 0.5
        newest = {self.shape[value][0]: offset for offset, value in enumerate(self.log[:end])}
        for offset, value in enumerate(self.log[:end]):
            key, is_tombstone = self.shape[value]
            if newest[key] > offset or (is_tombstone and drops_tombstones):
                self.removed.add(offset)

    def lose(self) -> None:
        """Elect a leader uncleanly, which lacks the end of the log."""
        first, end = self.draw.randint(self.log_start, len(self.log)), len(self.log)
        first = max(first, min(end, self.clean_end))  # Only the log of another replica could lack what was cleaned here.
        del self.log[first:]
        self.time += 0.001
        self.history.loss(P, first, self.draw.choice((end, None)) if end == self.known_end() else end)
        self.epoch += 1
        for reader, position in self.readers.items():
            self.readers[reader] = min(position, first)

    def known_end(self) -> int:
        """The log end that the checker assumes if none is declared: the highest one that a client knows."""
        ends = [s.offset + 1 for s in self.history.sends if s.outcome == "ok"]
        return max([0, *ends, *(p.offsets[-1] + 1 for p in self.history.polls if p.offsets)])

    def end(self) -> None:
        """Heal everything, answer everything, and read everything once more."""
        for queue in self.queues.values():
            for send in queue:
                self.commit(send)
        while self.flying:
            self.answer()
        while self.asked:
            self.answer_latest()
        self.time += 1
        for first in range(self.log_start, len(self.log), 50):
            records = [(o, v) for o, v in enumerate(self.log) if first <= o < first + 50 and o not in self.removed]
            self.history.poll("last", P, records, final=True)


@pytest.mark.parametrize("part", range(10))
def test_correct_partition_is_good(part: int) -> None:
    """One false alarm in a night of a hundred thousand runs is one too many."""
    seen: Counter[str] = Counter()
    for seed in range(part * SEEDS // 10, (part + 1) * SEEDS // 10):
        verdict = check(Model(seed).run(), acks="all")
        assert verdict.good, f"seed {seed}: {verdict}"
        seen.update(ok=verdict.acknowledged, info=verdict.unknown, failed=verdict.failed, read=verdict.read)
        seen.update(copies=verdict.duplicates_allowed, lost=verdict.unpromised_lost)
    assert min(seen.values()) > 10, f"the model is too tame: {seen}"


def spoil(history: History, draw: Random, name: str) -> bool:
    """Break one promise. Returns False if this history has nothing with which it could be broken."""
    acked = [s for s in history.sends if s.outcome == "ok" and s.acks == -1 and s.idempotent is None]
    final = [(p, i) for p in history.polls if p.final for i in range(len(p.offsets))]
    if not acked or len(final) < 4:
        return False
    poll, i = draw.choice(final)
    match name:
        case "lost-write":  # the last record is missing
            wanted = poll.values[-1] if poll.final else None
            poll = [p for p in history.polls if p.final][-1]
            wanted = poll.values.pop()  # type: ignore[attr-defined]
            poll.offsets.pop()  # type: ignore[attr-defined]
            return any(s.value == wanted for s in acked)
        case "inconsistent-offsets":
            history.invoke("x", P, b"other").info()
            history.seek("x", P)
            history.poll("x", P, [(poll.offsets[i], b"other")])
        case "duplicate":
            if not (copies := [s for s in acked if s.offset in poll.offsets]):
                return False
            last = [p for p in history.polls if p.final][-1]
            history.poll("last", P, [(last.offsets[-1] + 1, copies[0].value)], final=True)
        case "aborted-read":
            failed = [s for s in history.sends if s.outcome == "fail"]
            if not failed:
                return False
            last = [p for p in history.polls if p.final][-1]
            history.poll("last", P, [(last.offsets[-1] + 1, failed[0].value)], final=True)
        case "poll-skip":
            history.seek("x", P, poll.offsets[0])
            history.poll("x", P, [(poll.offsets[-1], poll.values[-1])])
            return len(poll.offsets) > 1
        case "nonmonotonic-poll":
            history.poll("last", P, [(poll.offsets[-1], poll.values[-1])])
        case "nonmonotonic-latest":
            last = [p for p in history.polls if p.final][-1]
            history.latest("x", P, last.offsets[-1], began_at=history.now() + 1, at=history.now() + 2)
        case "stale-leader-ack":
            send = draw.choice(acked)
            send.leader_epoch = 1
            history.saw_epoch("x", P, 2, at=send.invoked_at - 0.0001)
        case "realtime-order":
            last = [p for p in history.polls if p.final][-1]
            history.invoke("x", P, last.values[0], at=history.now() + 1).ok(last.offsets[0], at=history.now() + 2)
            return last.offsets[0] < max(s.offset for s in acked)
    return True


@pytest.mark.parametrize(
    "name",
    [
        "lost-write",
        "inconsistent-offsets",
        "duplicate",
        "aborted-read",
        "poll-skip",
        "nonmonotonic-poll",
        "nonmonotonic-latest",
        "stale-leader-ack",
        "realtime-order",
    ],
)
def test_single_anomaly_in_a_correct_history_is_found(name: str) -> None:
    """A hand-written history holds little else; here the needle is in a haystack."""
    spoiled = 0
    for seed in range(60):
        history = Model(seed, losses=False, compacted=False).run()
        if spoil(history, Random(seed), name):
            spoiled += 1
            counts = check(history, acks="all").counts()
            assert counts[name], f"seed {seed}: {name} was not found, but {counts}"
    assert spoiled > 20


def test_lost_last_value_of_a_key_is_found() -> None:
    """A cleaner may remove all other records, and these are only a few."""
    spoiled = 0
    for seed in range(60):
        model = Model(seed, losses=False, compacted=True)
        model.history = history = model.run()
        # A tombstone that was not acknowledged by all may have been in the log, and excuses what lies before it.
        deleted = {send.key for send in history.sends if send.tombstone and (send.outcome == "info" or send.acks == 1)}
        sure = [send for send in history.sends if send.outcome == "ok" and send.acks == -1 and send.idempotent is None]
        acked = {send.value for send in sure if not send.tombstone and send.key not in deleted}
        last = {model.shape[value][0]: value for poll in history.polls if poll.final for value in poll.values}
        if wanted := [value for value in last.values() if value in acked]:
            spoiled += 1
            for poll in history.polls:
                if poll.final and wanted[0] in poll.values:
                    place = poll.values.index(wanted[0])
                    del poll.offsets[place], poll.values[place]  # type: ignore[attr-defined]
            assert check(history, acks="all").counts()["lost-write"], f"seed {seed}: {wanted[0]!r} is not missed"
    assert spoiled > 20


def test_the_checks_of_the_model_can_fail() -> None:
    """A loss that is not declared is an anomaly."""

    def undeclared(partition: object, first: int, end: int | None = None) -> None: ...

    lost: Callable[..., None] = undeclared
    found: Counter[str] = Counter()
    for seed in range(60):
        model = Model(seed)
        history = model.history
        model.history = _Deaf(history, lost)  # type: ignore[assignment]
        model.run()
        found += check(history, acks="all").counts()
    assert {"lost-write", "inconsistent-offsets", "nonmonotonic-poll", "nonmonotonic-latest"} <= found.keys(), found


class _Deaf:
    """A history that ignores declared losses."""

    def __init__(self, history: History, loss: Callable[..., None]) -> None:
        self._history = history
        self.loss = loss

    def __getattr__(self, name: str) -> Any:
        return getattr(self._history, name)
