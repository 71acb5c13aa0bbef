"""Write `kafka_tools.transcript` again, from a real Kafka, from Strandline, or from both. Check the changes afterwards.

    python tests/kafka/record_tools.py [kafka] [ours]

The output of a side that is not recorded is kept. A command whose outputs differ gets a `~ because`: add its reason.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "common")]

from kafka_settings import OURS, SETTINGS  # noqa: E402
from real_kafka_cluster import RealKafkaCluster  # noqa: E402
from tool_runner import ToolRunner  # noqa: E402
from tool_transcript import Player, Step, merged, parse, write  # noqa: E402

from strandline.local_cluster import LocalCluster  # noqa: E402

TRANSCRIPT = HERE / "kafka_tools.transcript"
SCRIPT = os.environ.get("STRANDLINE_KAFKA_TOOLS", str(HERE.parents[2] / "shared/tools/apache-kafka"))


def play(side: str, bootstrap: str, folder: Path, steps: list[Step]) -> None:
    """Play the steps, and store the output of one side in them. `side`: - for Kafka, + for Strandline."""
    with ToolRunner(SCRIPT, folder) as runner:
        player = Player(runner, bootstrap, folder)
        for step in steps:
            begun = time.monotonic()
            lines = player.play(step)
            print(f"{time.monotonic() - begun:6.2f} s {step.command}", file=sys.stderr, flush=True)
            kafka, ours = (lines, step.expected("+")) if side == "-" else (step.expected("-"), lines)
            step.lines = merged(kafka, ours)
            reason = step.mark("because")
            step.marks = [mark for mark in step.marks if not mark.startswith("because")]
            if kafka != ours:
                step.marks.append(f"because {reason or ''}".strip())


async def main(sides: list[str]) -> None:
    steps = parse(TRANSCRIPT.read_text())
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="strandline-tools-")))
        if "kafka" in sides:
            kafka = stack.enter_context(RealKafkaCluster(SCRIPT, folder, settings=SETTINGS))
            play("-", kafka.bootstrap, folder, steps)
        if "ours" in sides:
            base_port = int(os.environ.get("BASE_PORT", "0"))
            async with LocalCluster(folder / "ours", controllers=1, kafka=True, base_port=base_port, settings=OURS) as cluster:
                await asyncio.to_thread(play, "+", cluster.kafka_bootstrap, folder, steps)
    TRANSCRIPT.write_text(write(steps))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:] or ["kafka", "ours"]))
