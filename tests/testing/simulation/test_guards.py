"""The catalogue of guards fits the source, a guard can be removed and restored, and the page shows the findings."""

from __future__ import annotations

import builtins
import re
from pathlib import Path
from typing import Any

import pytest

from strandline.broker.partition.partition import Partition
from strandline.controller.raft.election_handler import ElectionHandler
from strandline.protocol.errors import BrokerError, UsageError
from strandline.testing.simulation.guards import table
from strandline.testing.simulation.guards.catalogue import GUARDS, Guard
from strandline.testing.simulation.guards.hunt import Watched, by_runs, by_unit_tests
from strandline.testing.simulation.guards.removal import NOTE, NoSuchGuard, check, function_of, occurrences, watched, without
from strandline.testing.simulation.guards.survivors import WHY

ROOT = Path(__file__).parents[3]


class Led:
    """The part of a partition that `check_leader_epoch` reads."""

    leader_epoch = 5


def refuses(epoch: int) -> bool:
    try:
        Partition.check_leader_epoch(Led(), epoch)  # type: ignore[arg-type]
    except BrokerError as e:
        return "older" in str(e)
    return False


@pytest.mark.parametrize("number", sorted(GUARDS, key=lambda number: int(number[1:])))
def test_a_guard_of_the_catalogue_is_in_the_source(number: str) -> None:
    """If this fails, the guard was moved, changed or removed: update its entry in the catalogue, or delete it."""
    guard = GUARDS[number]
    check(guard)
    assert occurrences(guard) == 1, "an expression that stands there twice does not say which is meant"
    assert guard.guard != guard.removed
    assert function_of(guard).__code__.co_qualname == guard.function


def test_numbers_and_meanings_of_the_catalogue_are_unique() -> None:
    assert len({(g.module, g.function, g.guard, g.removed) for g in GUARDS.values()}) == len(GUARDS) >= 60
    assert len({guard.meaning for guard in GUARDS.values()}) == len(GUARDS)


def test_guard_is_removed_and_restored() -> None:
    """This holds also for other references to the function: its code object is replaced, not the function."""
    held = Partition.check_leader_epoch
    assert refuses(3)
    with without(GUARDS["G05"]):
        assert Partition.check_leader_epoch is held
        assert not refuses(3)
    assert refuses(3)


def test_guard_is_restored_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), without(GUARDS["G05"]):
        raise ZeroDivisionError
    assert refuses(3)


def test_a_watched_guard_says_when_it_makes_a_difference() -> None:
    with watched([GUARDS["G05"], GUARDS["G122"]]) as hits:
        assert not refuses(7)
        assert hits == set()
        assert refuses(3)
        assert hits == {"G05"}
    assert not hasattr(builtins, NOTE)


def test_an_entry_that_fits_nothing_is_refused() -> None:
    gone = Guard("G999", "broker/partition/partition.py", "Partition.leading", "epoch == 42", "False", "nothing")
    with pytest.raises(NoSuchGuard, match=r"G999: broker/partition/partition.py: Partition.leading does not have 'epoch == 42'"):
        check(gone)
    with pytest.raises(NoSuchGuard, match=r"has no function Partition\.nowhere"):
        check(Guard("G999", "broker/partition/partition.py", "Partition.nowhere", "epoch == 42", "False", "nothing"))


def test_a_guard_of_the_quorum_is_found_by_a_scenario() -> None:
    """A vote that is answered before it is on the disk: the story of a voter that dies between the two."""
    assert ElectionHandler.on_vote_request is function_of(GUARDS["G130"])
    runs = [Watched("S01", frozenset(), 0.1), Watched("S46", frozenset({"G130"}), 0.1)]
    find = by_runs(GUARDS["G130"], runs)
    assert (find.runs, find.by, find.tried, find.reached, find.of) == (2, "S46", 1, 1, 2), find
    assert find.text.startswith("I18")


def test_a_guard_of_a_partition_is_found_by_its_unit_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    test = "tests/broker/test_partition.py::test_a_registration_with_an_older_partition_epoch_is_refused"
    other = "tests/broker/test_partition_state.py"
    runs = [Watched(other, frozenset(), 0.1), Watched(test, frozenset({"G01"}), 0.1)]
    find = by_unit_tests(GUARDS["G01"], runs)
    assert (find.runs, find.by, find.reached, find.of) == (1, test, 1, 2), find


def test_runs_in_which_a_guard_makes_no_difference_are_not_repeated() -> None:
    find = by_runs(GUARDS["G130"], [Watched("S01", frozenset(), 0.1)])
    assert (find.runs, find.tried, find.reached, find.of) == (None, 0, 0, 1)


# -- the page ---------------------------------------------------------------------------------------------------------


def found() -> dict[str, dict[str, Any]]:
    return table.json.loads((ROOT / table.FOUND).read_text())  # type: ignore[no-any-return]


def test_the_page_is_up_to_date() -> None:
    """`python -m strandline.testing.simulation.guards.hunt table` writes it."""
    assert (ROOT / table.PAGE).read_text() == table.page(found())


def test_findings_name_existing_tests() -> None:
    """If a test is renamed or removed, it must be renamed in docs/guards.json, or the guard hunted again."""
    by = {find["by"] for finds in found().values() for find in finds.values() if "::" in find.get("by", "")}
    named = {name: name.partition("[")[0].split("::") for name in by}
    gone = [name for name, (file, test, *_) in named.items() if not is_in(ROOT / file, test)]
    assert by
    assert gone == []


def is_in(file: Path, test: str) -> bool:
    return file.exists() and re.search(rf"\b{test}\b", file.read_text()) is not None


def test_every_unnoticed_guard_has_a_reason() -> None:
    """A survivor without a reason is a blind spot that has not been looked into."""
    survivors = {guard.number for guard in table.survivors(found())}
    assert survivors <= set(WHY) <= set(GUARDS)
    assert all(len(reason) > 20 for reason in WHY.values())


def test_unknown_guards_are_refused() -> None:
    from strandline.testing.simulation.guards.hunt import main

    with pytest.raises(UsageError, match="there is no guard 'G999'"):
        main(["G999"])
