"""`check_exactly_once`: of a program that consumes, transforms and produces in transactions, the output equals the input.

It needs no history: only the input, the committed output, and the positions that the program's group has committed. An output
names its input, so each value of the output holds the value of its input, or `source` finds it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from strandline.testing.history.operations import Partition, Value
from strandline.testing.history.transactions.verdict import TRANSACTION_MEANINGS, TransactionVerdict
from strandline.testing.history.verdict import Findings, short

Log = Sequence[tuple[int, Any]]
"""(offset, value), by ascending offset."""
Logs = Mapping[Any, Log]
"""The log of each partition. The key type is Any, so that mappings with any type of partition are accepted."""
_Place = tuple[Partition, int]


def check_exactly_once(
    inputs: Logs,
    outputs: Logs,
    *,
    positions: Mapping[Any, int] | None = None,
    source: Callable[[Any], Value] = lambda value: value,
) -> TransactionVerdict:
    """Check that each input has exactly one output, and that outputs stop where the committed positions are.

    `inputs`, `outputs`: the committed records of each partition. `positions`: what the group has committed; a partition without a
    position was not consumed. None: everything was consumed. `source`: the value of the input that an output comes from.
    ValueError: two inputs have the same value.
    """
    findings = Findings(TRANSACTION_MEANINGS)
    place_of = _places(inputs)
    found: Counter[Value] = Counter()
    for partition, log in outputs.items():
        last: dict[Partition, int] = {}
        for offset, output in log:
            value = source(output)
            if value not in place_of:
                findings.add("unexplained-output", partition, f"{short(output)} at {offset} belongs to no input", offset)
                continue
            found[value] += 1
            _check_place(findings, partition, offset, value, place_of[value], last)
    for value, place in place_of.items():
        _check_number(findings, value, place, found[value], positions)
    return TransactionVerdict(tuple(findings.kept), findings.counts, read=sum(map(len, outputs.values())))


def _places(inputs: Logs) -> dict[Value, _Place]:
    places: dict[Value, _Place] = {}
    for partition, log in inputs.items():
        for offset, value in log:
            if value in places:
                raise ValueError(f"two inputs have the value {short(value)}")
            places[value] = (partition, offset)
    return places


def _check_place(
    findings: Findings, partition: Partition, offset: int, value: Value, place: _Place, last: dict[Partition, int]
) -> None:
    source, at = place
    if at < last.get(source, -1):
        text = f"{short(value)}, input {at}, is at {offset}, after the output of input {last[source]}"
        findings.add("output-order", partition, text, offset)
    last[source] = max(at, last.get(source, -1))


def _check_number(
    findings: Findings, value: Value, place: _Place, number: int, positions: Mapping[Partition, int] | None
) -> None:
    partition, offset = place
    is_done = positions is None or offset < positions.get(partition, 0)
    if number == 0 and is_done:
        findings.add("lost-input", partition, f"{short(value)} at {offset} has no output", offset)
    elif number > 1:
        findings.add("duplicate-output", partition, f"{short(value)} at {offset} has {number} outputs", offset)
    if number and not is_done:
        assert positions is not None
        text = f"{short(value)} at {offset} has an output, and the committed position is {positions.get(partition, 0)}"
        findings.add("uncommitted-input", partition, text, offset)
