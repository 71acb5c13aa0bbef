"""The checked arguments of `Consumer.run`, and the decision about a record that fails. Pure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from strandline.client.arguments import checked_name, checked_whole
from strandline.client.consumer.records import ConsumerRecord
from strandline.client.consumer.run.backoff import Backoff
from strandline.client.option_types import Number
from strandline.client.type_variables import K, V
from strandline.protocol.errors import UsageError

RecordHandler = Callable[[ConsumerRecord[K, V]], Awaitable[object] | object]
"""Handles one record."""
BatchHandler = Callable[[list[ConsumerRecord[K, V]]], Awaitable[object] | object]
"""Handles several records, which it gets in order."""
Concurrency = Literal["partition", "key"] | int
OnFailure = Literal["stop", "skip"]
NoRetry = type[Exception] | Iterable[type[Exception]]

MAX_TASKS = 64
"""The most calls of a handler that run at the same time, unless the program sets `max_tasks` or a number as `concurrency`."""


class Fate(Enum):
    """The ways to treat a record whose handler failed."""

    RETRY_HERE = "it is handled again later; in a lane with order, the records behind it wait"
    RETRY_TOPIC = "it goes to the retry topic"
    DEAD_LETTER = "it goes to the dead-letter topic"
    SKIP = "it is left out"
    STOP = "`run` ends with the error"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """The arguments of `Consumer.run`; see there. UsageError for values that are wrong, or that contradict each other."""

    concurrency: Concurrency = "partition"
    batch_size: int | None = None
    max_tasks: int | None = None
    max_in_flight: int = 1_000
    retry: Backoff | None = None
    retry_topic: str | None = None
    dlq: str | None = None
    no_retry: NoRetry = ()
    on_failure: OnFailure = "stop"
    drain_timeout_ms: float = 10_000

    def __post_init__(self) -> None:
        self._check_concurrency()
        if self.batch_size is not None:
            checked_whole("batch_size", self.batch_size, 1)
        checked_whole("max_in_flight", self.max_in_flight, 1)
        self._check_failures()
        object.__setattr__(self, "no_retry", _checked_errors(self.no_retry))
        try:
            Number(0).check(self.drain_timeout_ms)
        except ValueError:
            raise UsageError(f"drain_timeout_ms must be {Number(0).text}, not {self.drain_timeout_ms!r}") from None

    def _check_concurrency(self) -> None:
        if self.concurrency not in ("partition", "key"):
            if isinstance(self.concurrency, str):
                raise UsageError(f'concurrency must be "partition", "key" or a whole number, not {self.concurrency!r}')
            checked_whole("concurrency", self.concurrency, 1)
            if self.max_tasks is not None:
                raise UsageError("max_tasks contradicts a concurrency that is a number: both say how many calls run at once")
        if self.max_tasks is not None:
            checked_whole("max_tasks", self.max_tasks, 1)

    def _check_failures(self) -> None:
        if self.retry is not None and not isinstance(self.retry, Backoff):
            raise UsageError(f"retry must be a Backoff, or None, not {self.retry!r}")
        for topic in (self.retry_topic, self.dlq):
            if topic is not None:
                checked_name(topic)
        if self.retry_topic is not None and self.retry is None:
            raise UsageError("retry_topic needs retry=Backoff(...), which says how often and how long after")
        if self.retry_topic is not None and self.retry_topic == self.dlq:
            raise UsageError(f"retry_topic and dlq must be two topics, not both {self.dlq!r}")
        if self.on_failure not in ("stop", "skip"):
            raise UsageError(f'on_failure must be "stop" or "skip", not {self.on_failure!r}')

    @property
    def calls_max(self) -> int:
        """The most calls of the handler that run at the same time."""
        if not isinstance(self.concurrency, str):
            return self.concurrency
        return MAX_TASKS if self.max_tasks is None else self.max_tasks

    @property
    def topics_written(self) -> list[str]:
        """The topics to which failed records are sent."""
        return [topic for topic in (self.retry_topic, self.dlq) if topic is not None]

    def fate(self, error: BaseException, attempt: int, *, may_repeat: bool = True) -> Fate:
        """Decide what happens to a record that has failed with this error in its `attempt`-th attempt. `may_repeat`: False if
        another attempt would certainly fail as well."""
        assert isinstance(self.no_retry, tuple), "it was checked"
        is_repeated = may_repeat and not isinstance(error, self.no_retry)
        if is_repeated and self.retry is not None and self.retry.has_attempt_after(attempt):
            return Fate.RETRY_HERE if self.retry_topic is None else Fate.RETRY_TOPIC
        if self.dlq is not None:
            return Fate.DEAD_LETTER
        return Fate.SKIP if self.on_failure == "skip" else Fate.STOP


def _checked_errors(given: NoRetry) -> tuple[type[Exception], ...]:
    kinds = (given,) if isinstance(given, type) else tuple(given)
    for kind in kinds:
        if not isinstance(kind, type) or not issubclass(kind, Exception):
            raise UsageError(f"no_retry has classes of exceptions, not {kind!r}")
    return kinds
