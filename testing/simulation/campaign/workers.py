"""Processes that run simulations, one per core: a job is a line of JSON, and so is its result.

A seed needs a core for about a second and shares nothing with the next one, so threads would not help and shared memory is not
needed. Each process has its own hash seed: if a run depends on the order of a set, it differs between two processes, so a seed
that runs in both shows this.

    with Workers(2) as workers:
        for done in workers.run(jobs):
            done.report["verdict"]

A process that hangs or grows too large is killed and replaced; its job counts as a failure.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import selectors
import subprocess
import sys
import time
import traceback
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO, Any, Self

from strandline.testing.simulation.observation.wrapping import kept
from strandline.testing.simulation.runs.replay import Replay
from strandline.testing.simulation.runs.run import VIOLATION

TIMEOUT_S = 600.0
"""Wall-clock seconds after which a run counts as hanging."""
RSS_BYTES_MAX = 1 << 30
"""A larger process is replaced. A run leaves nothing behind, so this should never happen."""
ADDRESS_SPACE_BYTES_MAX = 3 << 30
"""The limit of a process's address space: a run that allocates without end fails before the machine does."""
LEFT_OUT = ("options",)
"""Fields of the report that the line omits, because they can be drawn from the seed again."""


@dataclass(frozen=True, slots=True)
class Job:
    replay: Replay
    tag: Any = None
    """Any value; the result contains it unchanged."""
    avoid: int = -1
    """The number of a process that must not run this job."""


@dataclass(frozen=True, slots=True)
class Done:
    job: Job
    report: dict[str, Any]
    """`Report.as_dict`, without the options."""
    worker: int
    """The number of the process; a replacement has a new one."""
    cpu_s: float = 0.0
    rss_bytes: int = 0
    died: bool = False
    """The process died, so the report is not the run's own."""

    @property
    def violation(self) -> dict[str, Any] | None:
        """The first violation."""
        violations = self.report.get("violations") or [None]
        return violations[0] if self.report["verdict"] == VIOLATION else None


@dataclass(slots=True)
class _Worker:
    number: int
    process: subprocess.Popen[bytes]
    job: Job | None = None
    since: float = 0.0
    pending: bytearray = field(default_factory=bytearray)
    """The beginning of a line that has not ended yet."""

    @property
    def stdin(self) -> IO[bytes]:
        assert self.process.stdin is not None
        return self.process.stdin

    @property
    def stdout(self) -> IO[bytes]:
        assert self.process.stdout is not None
        return self.process.stdout


class Workers:
    def __init__(
        self,
        count: int,
        *,
        timeout_s: float = TIMEOUT_S,
        rss_bytes_max: int = RSS_BYTES_MAX,
        first: int = 1,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """`first` is the number of the first process, and its hash seed; `env` is laid over the environment of this process."""
        self.count = count
        self.timeout_s = timeout_s
        self.rss_bytes_max = rss_bytes_max
        self.replaced = 0
        """Number of processes that were killed and replaced."""
        self._first: deque[Job] = deque()
        self._workers: dict[int, _Worker] = {}
        self._started = first - 1
        self._env = dict(env or {})
        self._selector = selectors.DefaultSelector()

    def __enter__(self) -> Self:
        for _ in range(self.count):
            self._start()
        return self

    def __exit__(self, *_: object) -> None:
        for worker in list(self._workers.values()):
            self._end(worker)
        self._selector.close()

    def soon(self, job: Job) -> None:
        """Run this job before the next one of `run`."""
        self._first.append(job)

    def run(self, jobs: Iterable[Job]) -> Iterator[Done]:
        """Run all jobs; yields each result when it arrives. A job is taken from `jobs` only when a process is free. A caller that
        stops early leaves busy processes, which the end of the `with` block kills."""
        source = iter(jobs)
        exhausted = False
        while True:
            for worker in self._workers.values():
                if worker.job is None and (job := self._next(source, worker) if not exhausted or self._first else None):
                    self._give(worker, job)
            busy = [worker for worker in self._workers.values() if worker.job is not None]
            exhausted = len(busy) < len(self._workers)
            if not busy and not self._first:
                return
            yield from self._wait(busy)

    def _next(self, source: Iterator[Job], worker: _Worker) -> Job | None:
        for place, job in enumerate(self._first):
            if job.avoid != worker.number or len(self._workers) == 1:
                del self._first[place]
                return job
        return next(source, None)

    # -- processes ----------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        self._started += 1
        process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **self._env, "PYTHONHASHSEED": str(self._started)},
            start_new_session=True,  # Ctrl-C is handled in this process only
        )
        worker = self._workers[self._started] = _Worker(self._started, process)
        os.set_blocking(worker.stdout.fileno(), False)
        self._selector.register(worker.stdout, selectors.EVENT_READ, worker)

    def _end(self, worker: _Worker) -> None:
        del self._workers[worker.number]
        self._selector.unregister(worker.stdout)
        worker.process.kill()
        with contextlib.suppress(BrokenPipeError):  # the buffer still holds a job that it did not take
            worker.stdin.close()
        with worker.process:  # closes the other pipe, and waits
            pass

    def _replace(self, worker: _Worker) -> None:
        self.replaced += 1
        self._end(worker)
        self._start()

    # -- jobs ---------------------------------------------------------------------------------------------------------

    def _give(self, worker: _Worker, job: Job) -> None:
        worker.job, worker.since = job, time.monotonic()
        try:
            worker.stdin.write(json.dumps(job.replay.as_dict()).encode() + b"\n")
            worker.stdin.flush()
        except BrokenPipeError:
            pass  # The process has died: its output ended.

    def _wait(self, busy: list[_Worker]) -> Iterator[Done]:
        oldest = min(worker.since for worker in busy)
        ready = self._selector.select(max(0.0, oldest + self.timeout_s - time.monotonic()) + 0.05)
        for key, _ in ready:
            worker: _Worker = key.data
            data = worker.stdout.read()
            worker.pending += data or b""
            if b"\n" in worker.pending:
                yield self._done(worker)
            elif data == b"":
                yield self._failed(worker, f"the process ended with {worker.process.wait()}")
        for worker in busy:
            if worker.job is not None and time.monotonic() - worker.since > self.timeout_s:
                yield self._failed(worker, f"the run did not end within {self.timeout_s:g} s of wall time")

    def _done(self, worker: _Worker) -> Done:
        line, _, rest = worker.pending.partition(b"\n")
        values = json.loads(line)
        job, worker.job, worker.pending = worker.job, None, bytearray(rest)
        assert job is not None
        done = Done(job, values["report"], worker.number, values["cpu_s"], values["rss_bytes"])
        if done.rss_bytes > self.rss_bytes_max:
            self._replace(worker)
        return done

    def _failed(self, worker: _Worker, text: str) -> Done:
        job = worker.job
        assert job is not None
        self._replace(worker)
        return Done(job, failure(job.replay, text), worker.number, died=True)


def failure(replay: Replay, text: str) -> dict[str, Any]:
    """The report of a run that returned none."""
    violation = {"invariant": "simulator", "text": text, "partition": "", "node": 0, "time_s": 0.0, "story": ""}
    return {
        "seed": replay.seed,
        "scenario": replay.scenario,
        "verdict": VIOLATION,
        "violations": [violation],
        "trace_sha256": "",
        **dict.fromkeys(("events", "messages", "virtual_s", "wall_s", "sent", "acked"), 0),
        **{name: {} for name in ("faults", "skipped", "marks")},
    }


# -- in the process ---------------------------------------------------------------------------------------------------


def report_of(replay: Replay) -> dict[str, Any]:
    """The report of the run, or of a crash of the simulator itself."""
    try:
        values = replay.run().as_dict()
    except Exception:
        return failure(replay, traceback.format_exc())
    return {name: value for name, value in values.items() if name not in LEFT_OUT}


def rss_bytes() -> int:
    """The present memory of this process; where the system does not report that, its maximum."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def main() -> None:
    """Serve jobs until the input ends. Only results go to the output."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (min(ADDRESS_SPACE_BYTES_MAX, most) if most >= 0 else ADDRESS_SPACE_BYTES_MAX, most))
    warnings.simplefilter("ignore")  # coroutines of killed processes are never awaited
    try:
        with kept():
            for line in sys.stdin:
                before = time.process_time()
                report = report_of(Replay.from_dict(json.loads(line)))
                answer = {"report": report, "cpu_s": time.process_time() - before, "rss_bytes": rss_bytes()}
                print(json.dumps(answer), file=answers, flush=True)
    except (BrokenPipeError, KeyboardInterrupt):
        os._exit(1)


if __name__ == "__main__":
    main()
