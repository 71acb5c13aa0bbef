"""Two drivers run a query with one checkpoint, as if a supervisor started a second driver too early. Each row is stored once.

The rows are shuffled, so their order is unknown: an attempt fences the others, reads back what they wrote, and compares rows. Two
attempts of a task with a stable order are in test_spark_standalone_speculation.py. The replicas' segments are the judge. The
shared Spark runs one of the two drivers.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cli_world import ENVIRONMENT
from pyspark.errors import StreamingQueryException
from rival_stream import begin
from stored import stored_values
from test_spark_sink import Copy, each_once

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from strandline.testing import ThreadedCluster

REASONS = ("ProducerFenced", "CONCURRENT_STREAM_LOG_UPDATE", "Multiple streaming queries are concurrently using")
"""Errors that end a driver: the other one has begun a newer attempt, or has written the next batch of the checkpoint (Spark finds
the file before it writes its own, or when it renames its own)."""
CHUNK, WITHIN_S = 400, 180


class Rivals:
    def __init__(self, copy: Copy) -> None:
        self.copy, self.sent = copy, 0
        checkpoint = str(copy.folder / "checkpoint")
        self.words = (copy.log.bootstrap_servers, copy.source, copy.target, checkpoint)
        self.told = copy.folder / "rival.log"
        self.query = begin(copy.spark, *self.words)
        self.other: subprocess.Popen[bytes] | None = None

    def fill(self) -> None:
        self.copy.fill(self.sent, CHUNK)
        self.sent += CHUNK

    def stored(self) -> int:
        async def count() -> int:
            async with self.copy.log.cluster.consumer() as consumer:
                return sum((await consumer.end_offsets([(self.copy.target, p) for p in range(3)])).values())

        return self.copy.log.run(count())

    def start_other(self) -> None:
        command = [sys.executable, str(Path(__file__).with_name("rival_stream.py")), *self.words]
        with self.told.open("wb") as told:
            self.other = subprocess.Popen(command, env=ENVIRONMENT, stdout=told, stderr=told, start_new_session=True)

    def reasons(self) -> list[str]:
        """The errors of the drivers that have ended."""
        ended = []
        if not self.query.isActive:
            with pytest.raises(StreamingQueryException) as error:
                self.query.awaitTermination(1)
            ended.append(str(error.value))
        assert self.other is not None
        if self.other.poll() is not None:
            ended.append(self.told.read_text())
        return ended

    def until_one_has_ended(self) -> list[str]:
        """Adds rows until one driver ends, so that both have something to write."""
        deadline = time.monotonic() + WITHIN_S
        while not (ended := self.reasons()):
            assert time.monotonic() < deadline, "both drivers still run"
            if self.stored() == self.sent:
                self.fill()
            time.sleep(0.05)
        return ended

    def until_all_is_stored(self) -> None:
        deadline = time.monotonic() + WITHIN_S
        while self.stored() < self.sent:
            assert time.monotonic() < deadline, f"{self.stored()} of {self.sent} rows"
            if len(self.reasons()) == 2:
                self.query = begin(self.copy.spark, *self.words)
            time.sleep(0.1)

    def end(self) -> None:
        self.query.stop()
        if self.other is not None:
            if self.other.poll() is None:
                os.killpg(self.other.pid, signal.SIGKILL)
            self.other.wait()


@pytest.fixture
def rivals(spark: SparkSession, log: ThreadedCluster, tmp_path: Path) -> Iterator[Rivals]:
    rivals = Rivals(Copy(spark, log, tmp_path))
    yield rivals
    rivals.end()


def test_two_drivers_with_one_checkpoint_store_each_row_once(rivals: Rivals) -> None:
    rivals.fill()
    rivals.start_other()
    ended = rivals.until_one_has_ended()
    assert all(any(reason in text for reason in REASONS) for text in ended), ended
    rivals.until_all_is_stored()
    rivals.end()
    assert stored_values(rivals.copy.log, rivals.copy.target) == each_once(rivals.sent)
