"""Shared by the results of an audit and of a verification: the order of findings, their JSON, plurals and times. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    class Finding(DataclassInstance, Protocol):
        """Something that a job found. A bad finding makes the job exit with 3; any other is a note."""

        @property
        def is_bad(self) -> bool: ...

        @property
        def sentence(self) -> str: ...


F = TypeVar("F", bound="Finding")


class Result(Protocol):
    """The result of a job. Its verdict is one sentence."""

    @property
    def is_ok(self) -> bool: ...

    @property
    def verdict(self) -> str: ...

    @property
    def made_at_s(self) -> float: ...


def bad_first(findings: Iterable[F]) -> tuple[F, ...]:
    return tuple(sorted(findings, key=lambda finding: not finding.is_bad))


def only_bad(findings: Iterable[F]) -> tuple[F, ...]:
    return tuple(finding for finding in findings if finding.is_bad)


def result_document(result: Result, **more: Any) -> dict[str, Any]:
    """A result as JSON has it: verdict, time, and the values `more`. Programs rely on the keys."""
    return {"ok": result.is_ok, "verdict": result.verdict, "made_at": iso(int(result.made_at_s)), **more}


def finding_document(finding: Finding, **more: Any) -> dict[str, Any]:
    """A finding as JSON has it: its fields, its sentence, and the values `more`. Programs rely on the keys."""
    return {**asdict(finding), "sentence": finding.sentence, **more}


def counted(number: int, one: str, more: str | None = None) -> str:
    """A number with its noun: `1 record`, `1,200 records`. `more` is the plural if it is not `one` with an s."""
    return f"{number:,} {one if number == 1 else more or one + 's'}"


def iso(at_s: int | None) -> str:
    """A time, in seconds since the epoch, as UTC for people: `2025-01-31 12:00:00`; None is `unknown`."""
    return "unknown" if at_s is None else datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%S")
