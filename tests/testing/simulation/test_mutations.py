"""Guards can be removed from the code, and are restored. That their absence is noticed is tested in test_hunt.py."""

from __future__ import annotations

import pytest

from strandline.protocol.errors import UsageError
from strandline.testing.simulation.campaign.mutations import MUTATIONS, WAITING, applied


@pytest.mark.parametrize("number", sorted(MUTATIONS))
def test_a_mutation_is_gone_when_it_is_over(number: str) -> None:
    patches = MUTATIONS[number].patches()
    before = [vars(owner)[name] for owner, name, _ in patches]
    with applied(number):
        assert [vars(owner)[name] for owner, name, _ in patches] != before
    assert [vars(owner)[name] for owner, name, _ in patches] == before


def test_every_mutation_is_defined_or_waits_for_a_feature() -> None:
    assert sorted({*MUTATIONS, *WAITING}, key=lambda number: int(number[1:])) == [
        f"M{number:02}" for number in (*range(1, 42), *range(50, 62), *range(70, 75), *range(80, 120))
    ]


def test_guard_is_restored_when_the_run_fails() -> None:
    patches = MUTATIONS["M01"].patches()
    before = [vars(owner)[name] for owner, name, _ in patches]
    with pytest.raises(ZeroDivisionError), applied("M01"):
        raise ZeroDivisionError
    assert [vars(owner)[name] for owner, name, _ in patches] == before


def test_unknown_mutation_is_rejected() -> None:
    with pytest.raises(UsageError, match="there is no mutation 'M999'"), applied("M999"):
        pass
