"""I45: the order of fencing tokens in the committed log, the tokens that logs know, and rejections."""

from __future__ import annotations

import pytest
from invariant_bench import KEY, NOW_MS, Bench, batch_of, bench

from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages.data import ProducePartitionResponse
from strandline.storage.log.fences import Fence, Fences
from strandline.storage.log.log import Log
from strandline.testing.simulation.invariants import fencing, producers
from strandline.testing.simulation.invariants.violation import Violation


def send(at: Bench, value: str, token: int = -1) -> None:
    at.log(1).append_as_leader(batch_of(value), at.partitions[1].leader_epoch, NOW_MS, {}, -1, token)


def commit(at: Bench) -> None:
    at.copy(1, 2, 3)
    for node in (1, 2, 3):
        at.raise_hw(node, at.log(1).log_end_offset)


def test_rising_tokens_are_in_order() -> None:
    with bench() as at:
        for token in (3, 3, -1, 5, 2**40):
            send(at, "a", token)
            commit(at)
        at.step()
        assert at.orders.token == 2**40
        for node in (1, 2, 3):
            producers.check_states(at.replica(node))


def test_lower_token_behind_a_higher_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with bench() as at:
        send(at, "new", 5)
        commit(at)
        monkeypatch.setattr(Log, "_find_unfenced", lambda log, headers, token: [])
        send(at, "old", 4)
        with at.flags("I45", "the record at offset 2 was sent with fencing token 4, but a fence has 5"):
            commit(at)


def test_record_without_its_fence_is_found() -> None:
    """The leader remembers the token; the next one would not."""
    with bench() as at:
        at.log(1).producers.fences.add(5, 0)
        send(at, "new", 5)
        with at.flags("I45", "was sent with fencing token 5, but a fence has -1"):
            commit(at)


def test_fence_that_raises_nothing_is_found() -> None:
    with bench() as at:
        send(at, "a", 5)
        commit(at)
        at.log(1).producers.fences = Fences()
        send(at, "b", 5)
        with at.flags("I45", "the fence at offset 2 has token 5, but the token before it is 5"):
            commit(at)


def test_truncated_fence_counts_for_nothing() -> None:
    with bench() as at:
        send(at, "a", 3)
        commit(at)
        send(at, "lost", 9)
        at.change(leader=2)
        at.take_role(2)
        at.take_role(3)
        at.take_role(1)
        at.log(1).truncate_to(2)
        at.log(2).append_as_leader(batch_of("b"), 1, NOW_MS, {}, -1, 4)
        at.copy(2, 1, 3)
        at.raise_hw(2, at.log(2).log_end_offset)
        at.step()
        assert at.orders.token == 4


def test_log_with_another_token_is_found_at_rest() -> None:
    with bench() as at:
        send(at, "a", 5)
        commit(at)
        at.step()
        for known in (Fences(), Fences([Fence(6, 0)])):
            at.log(3).producers.fences = known
            with pytest.raises(
                Violation, match=f"broker 3 has fencing token {known.token}, but the newest fence has 5"
            ) as caught:
                fencing.check_state(at.replica(3))
            assert caught.value.invariant == "I45"


def test_rejection_for_a_token_that_is_not_committed_is_found() -> None:
    with bench() as at:
        send(at, "a", 5)
        answer = ProducePartitionResponse(*KEY, ErrorCode.FENCED_TOKEN, fencing_token=5)
        with pytest.raises(Violation, match="a record is rejected for fencing token 5, but the committed one is -1"):
            fencing.on_rejected(at.ghosts, answer)
        commit(at)
        fencing.on_rejected(at.ghosts, answer)


def test_permitted_loss_silences_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unclean election may lose a fence as it may lose records."""
    with bench() as at:
        send(at, "new", 5)
        commit(at)
        monkeypatch.setattr(Log, "_find_unfenced", lambda log, headers, token: [])
        at.ghosts.permit_loss("a test")
        send(at, "old", 4)
        commit(at)
        at.step()
