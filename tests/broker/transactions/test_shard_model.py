"""Random requests of producers that lose answers, repeat requests, replace each other and mix both versions of the protocol.

Leaders never reject a marker of the coordinator: it would not be sent again, and its transaction would stay open for ever. And
the next producer can always take over."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st
from storage_kit import NOW_MS, batch, open_log
from test_shard import ID, TIMEOUT_MS, World

from strandline.broker.transactions.states import EPOCH_EXHAUSTED, EPOCH_MAX, TV1, TV2, State
from strandline.protocol.errors import BrokerError
from strandline.protocol.records.marker import EndTransactionMarker

Producer = tuple[int, int]

steps = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "end", "end", "init", "go_on", "time_out", "complete", "complete"]),
        st.integers(1, 4),
        st.sampled_from([TV1, TV2, TV2]),
        st.booleans(),
    ),
    min_size=5,
    max_size=50,
)


class Producers:
    """The coordinator, one partition, and the ids and epochs that the producers have received."""

    def __init__(self, first_epoch: int) -> None:
        self.world, self.log = World(), open_log()
        producer_id, _ = self.world.init()
        self.world.shard.transactions[ID] = replace(self.world.found, producer_epoch=first_epoch)
        self.known: list[Producer] = [(producer_id, first_epoch)]
        self.sequences: dict[Producer, int] = {}

    def do(self, step: str, back: int, version: int, commit: bool) -> None:
        """Do a step, as the producer with the `back`-th last of all ids and epochs that were given out."""
        producer = self.known[-min(back, len(self.known))]
        with suppress(BrokerError):
            if step == "add":
                self.world.add(producer, version=version)
                self.write(producer)
            elif step == "end":
                self.known.append(self.world.end(producer, commit=commit, version=version))
            elif step == "init":
                self.known.append(self.world.init())
            elif step == "go_on":
                self.known.append(self.world.init(producer))
        if step == "time_out":
            self.world.now_ms += TIMEOUT_MS
            self.world.expire()
        elif step == "complete":
            self.complete()

    def write(self, producer: Producer) -> None:
        sequence = self.sequences.get(producer, 0)
        self.sequences[producer] = sequence + 1
        records = batch(b"x", producer=(*producer, sequence), is_transactional=True)
        self.log.append_as_leader(records, 0, NOW_MS, is_transactional=True)

    def complete(self) -> None:
        for markers in self.world.markers:
            if markers.partitions:
                ended = EndTransactionMarker(markers.is_commit, 0)
                self.log.append_marker(ended, markers.producer_id, markers.producer_epoch, 0, NOW_MS, markers.version)
        self.world.complete()


TIMED_OUT = [("add", 1, TV1, False), ("time_out", 1, TV1, False), ("complete", 1, TV1, False), ("end", 1, TV2, False)]
"""A transaction of version 1 is aborted by its timeout, and its producer ends it in version 2."""


@settings(max_examples=150, deadline=None)
@example(TIMED_OUT, EPOCH_EXHAUSTED)
@given(steps, st.sampled_from([0, EPOCH_EXHAUSTED - 2, EPOCH_EXHAUSTED - 1, EPOCH_EXHAUSTED]))
def test_no_marker_is_refused_and_the_next_producer_takes_over(plan: list[tuple[str, int, int, bool]], first_epoch: int) -> None:
    producers = Producers(first_epoch)
    for step in plan:
        producers.do(*step)
        assert all(epoch < EPOCH_MAX for _, epoch in producers.known)
    producers.complete()
    with suppress(BrokerError):
        producers.world.init()  # aborts an open transaction
    producers.complete()
    successor = producers.world.init()
    producers.world.add(successor)
    producers.write(successor)
    producers.world.end(successor)
    producers.complete()
    assert producers.world.state is State.COMPLETE_COMMIT
    assert not producers.log.producers.transactions.ongoing()
