"""The thread that reports the progress of a job while the driver waits, without Spark."""

from __future__ import annotations

import threading

import pytest

from strandline.pipeline.jobs.progress import repeated


def test_reports_come_until_the_block_ends() -> None:
    reports = threading.Semaphore(0)
    with repeated(reports.release, 0.001, "progress-test"):
        for _ in range(3):
            assert reports.acquire(timeout=30)
    assert "progress-test" not in {thread.name for thread in threading.enumerate()}


def test_error_of_a_report_does_not_end_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hours of work must not be lost because a line could not be printed."""
    errors = list[type[BaseException]]()
    failed = threading.Event()

    def take(args: threading.ExceptHookArgs) -> None:
        errors.append(args.exc_type)
        failed.set()

    monkeypatch.setattr(threading, "excepthook", take)
    with repeated(lambda: 1 / 0, 0.001, "progress-test"):
        assert failed.wait(30)
    assert errors == [ZeroDivisionError]
