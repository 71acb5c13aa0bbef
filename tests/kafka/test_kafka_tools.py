"""Kafka's own command line tools, every verb: what they print for Strandline is what they print for a real Kafka 4.3.1.

`kafka_tools.transcript` has the commands and the answers (`tool_transcript.py` has its marks). The short form plays it against
Strandline, the long one against a real Kafka too, so that the transcript stays true; `record_tools.py` writes it again.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from kafka_settings import OURS, SETTINGS
from real_kafka import kafka_tools
from real_kafka_cluster import RealKafkaCluster
from tool_runner import TOOLS, ToolRunner
from tool_transcript import Player, Step, merged, parse, write

from strandline.local_cluster import LocalCluster

TRANSCRIPT = Path(__file__).parent / "kafka_tools.transcript"


def differences(side: str, script: str, bootstrap: str, folder: Path) -> list[str]:
    """Play the transcript; returns the steps whose output differs from it. `side`: - for Kafka, + for Strandline."""
    found = []
    with ToolRunner(script, folder) as runner:
        player = Player(runner, bootstrap, folder)
        for step in parse(TRANSCRIPT.read_text()):
            lines = player.play(step)
            if lines != step.expected(side):
                found.append("\n".join([f"$ {step.command}", *merged(step.expected(side), lines)]))
    return found


@pytest.mark.kafka
@pytest.mark.suite
@pytest.mark.processes
async def test_kafkas_tools_print_for_strandline_what_they_print_for_kafka(tmp_path: Path) -> None:
    """Only the differences in the transcript are permitted."""
    script = kafka_tools()
    async with LocalCluster(tmp_path / "ours", controllers=1, kafka=True, settings=OURS) as cluster:
        found = await asyncio.to_thread(differences, "+", script, cluster.kafka_bootstrap, tmp_path)
    assert not found, "\n\n".join(found)


@pytest.mark.kafka
@pytest.mark.suite
@pytest.mark.slow
def test_the_transcript_is_what_kafkas_tools_print_for_a_real_kafka(tmp_path: Path) -> None:
    """Otherwise Strandline could be compared with a transcript that is out of date."""
    script = kafka_tools()
    with RealKafkaCluster(script, tmp_path, settings=SETTINGS) as kafka:
        found = differences("-", script, kafka.bootstrap, tmp_path)
    assert not found, "\n\n".join(found)


def test_every_tool_is_in_the_transcript_and_every_difference_has_a_reason() -> None:
    """A verb that is not run proves nothing, and a difference without a reason is a bug."""
    steps = parse(TRANSCRIPT.read_text())
    assert set(TOOLS) <= {step.command.split()[0] for step in steps}
    unexplained = [step.command for step in steps if step.expected("-") != step.expected("+") and not step.mark("because")]
    assert not unexplained


def test_a_transcript_is_read_and_written_without_a_loss() -> None:
    """The recorder must keep the lines that it does not record."""
    text = "# remark\n\n@ a.json {}\n$ kafka-topics --list\n< in\n~ sort\n~ because of it\n  both\n- kafka\n+ ours\n"
    steps = parse(text)
    assert write(steps) == text
    assert steps == [
        Step(
            "kafka-topics --list",
            "in\n",
            ["sort", "because of it"],
            ["  both", "- kafka", "+ ours"],
            ["# remark", "", "@ a.json {}"],
        )
    ]
    assert (steps[0].expected("-"), steps[0].expected("+")) == (["both", "kafka"], ["both", "ours"])
