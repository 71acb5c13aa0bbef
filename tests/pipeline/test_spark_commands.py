"""Commands that start a Spark of their own, as users call them. (Most other tests share one Spark.)"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cli_world import ENVIRONMENT

from strandline.client.consumer.records import TopicPartition
from strandline.pipeline.jobs.lake_folder import read_manifest

if TYPE_CHECKING:
    from strandline.testing import ThreadedCluster

COMMANDS = """
import json, sys
from strandline.cli import main

for words in json.loads(sys.argv[1]):
    sys.argv[1:] = words
    try:
        main()
        code = 0
    except SystemExit as e:
        code = e.code or 0
    print(f"ended with {code}", file=sys.stderr, flush=True)
"""
"""Runs several commands, one after the other, in one process with one JVM, because a JVM takes longer to start than they run."""


@pytest.mark.spark
def test_command_prints_a_failure_in_one_sentence(log: ThreadedCluster, tmp_path: Path) -> None:
    """A second command in the same process must not be disturbed by the stopped Spark of the first."""
    topic = log.create_topic(partitions=1)
    log.run(send_ten(log, topic))
    lake, another = str(tmp_path / "lake"), str(tmp_path / "another")
    where = ["--bootstrap-servers", log.bootstrap_servers, "--topic", topic, "--master", "local[1]"]
    offload = ["pipeline", "offload", "--to", lake, *where]
    words = json.dumps([offload, [*offload, "--checkpoint", another]])
    command = [sys.executable, "-c", COMMANDS, words]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=240, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    filled, failed, _ = re.split(r"^ended with (?=\d$)", done.stderr, flags=re.MULTILINE)
    assert failed[0] == "0", done.stderr
    assert read_manifest(tmp_path / "lake").ends == {TopicPartition(topic, 0): 10}, filled
    assert f"strandline: the job has failed: offset 0 of {topic}-0 is already in the lake, which has" in failed
    assert done.stderr.endswith("ended with 1\n")


async def send_ten(log: ThreadedCluster, topic: str) -> None:
    async with log.cluster.producer() as producer:
        await producer.send_many(topic, [b"%d" % n for n in range(10)], partition=0)
