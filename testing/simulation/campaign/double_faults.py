"""Thousands of short runs in which several replicas lose records at once: is each loss in the report of an unclean election?

    python -m strandline.testing.simulation.campaign.double_faults --seeds 0..9999

A run has two to four brokers with one topic, and few other faults than machines that lose power together. With any strategy of
the topic, and also if a client elects, each committed record that is lost must lie in the range of a report, and a report with
an empty range means that no record is lost (I31). The exit code is 0 if that holds, and 3 if not.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from random import Random

from strandline.testing.simulation.campaign.workers import Job, Workers
from strandline.testing.simulation.options import ALL, FaultPlan, Options, TopicPlan, draw_options, with_double_faults
from strandline.testing.simulation.runs.replay import Replay, parse_seeds

FAULTS_S = 2.5
KINDS = ("crash", "crash", "power", "pause", "cut_node", "stop", "wipe", "wipe_last", "blackout")
"""The other kinds of faults that a run may have."""
BAD = 3


def double_faults(seed: int) -> Options:
    """The options of one run: those that the seed draws, without the parts that cost time and do not concern elections."""
    drawn, draw = draw_options(seed), Random(f"{seed}/double faults")
    brokers = draw.choice((2, 3, 3, 4))
    topic = _topic(draw, brokers)
    faults = _faults(draw)
    small = drawn.without_transactions().replaced(
        controllers=1,
        brokers=brokers,
        topics=(topic,),
        producers=tuple(replace(plan, crash_at_s=0.0) for plan in drawn.producers if plan.topic == topic.name)[:1],
        consumers=tuple(plan for plan in drawn.consumers if plan.topic == topic.name)[:1],
        settings={name: value for name, value in drawn.settings.items() if not name.startswith(("log.cleaner", "log.dirs"))},
        racks=(),
        readers=0,
        admin=(),
        lies=0,
        members=(),
        group_work=(),
        narrow_bounds=(),
        racers=0,
        trims=False,
        upgrades=False,
        reconfigures=False,
        reassigns=False,
        drains=False,
        moves_logs=False,
        kinds=dict.fromkeys((fault.kind for fault in faults), 1.0),
        faults=faults,
        faults_s=FAULTS_S,
        leave_out=0,
        orderly_end=False,
    )
    return with_double_faults(small, draw)


def _topic(draw: Random, brokers: int) -> TopicPlan:
    replicas = min(brokers, draw.choice((2, 3, 3)))
    least = min(replicas, draw.choice((1, 2, 2)))
    configs = {"min.insync.replicas": least, "flush.messages": draw.choice((1, 5, 2**63 - 1, 2**63 - 1))}
    return TopicPlan("orders", draw.choice((1, 2, 3)), replicas, least, ALL, configs)


def _faults(draw: Random) -> tuple[FaultPlan, ...]:
    faults = []
    for number in range(draw.choice((0, 1, 2))):
        at_s = round(draw.uniform(0.1, FAULTS_S), 3)
        faults.append(FaultPlan(number, at_s, draw.choice(KINDS), draw.choice((0.2, 0.5, 1.5)), draw.getrandbits(32)))
    return tuple(faults)


def replays(seeds: Iterable[int]) -> Iterable[Replay]:
    return (Replay.of(seed, double_faults(seed)) for seed in seeds)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Run double faults, and compare what is lost with the reports.")
    parser.add_argument("--seeds", default="0..99", help="such as 0..9999")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no run after this time")
    chosen = parser.parse_args(words)
    deadline = time.monotonic() + 60 * chosen.minutes
    verdicts, elections, runs = Counter[str](), 0, 0
    with Workers(chosen.workers) as workers:
        jobs = (Job(replay) for replay in replays(parse_seeds(chosen.seeds)) if time.monotonic() < deadline)
        for done in workers.run(jobs):
            runs += 1
            verdicts[done.report["verdict"]] += 1
            elections += done.report.get("marks", {}).get("election.unclean", 0)
            if done.violation is not None:
                print(f"{done.violation['invariant']}: {done.violation['text']}\n  {done.job.replay.command}", flush=True)
    print(f"{runs} runs with {elections} unclean elections: {', '.join(f'{n} {v}' for v, n in sorted(verdicts.items()))}")
    return BAD if verdicts["violation"] else 0


if __name__ == "__main__":
    sys.exit(main())
