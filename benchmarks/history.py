"""Measures the time and memory that the history checker needs for one valid history.

    python benchmarks/history.py --sends 1000000 --partitions 10 --records-per-poll 5

Every record is acknowledged and read by two consumers, one of them the final read; a client sometimes asks for the end of the
log. The memory is that of the process, including the history.
"""

from __future__ import annotations

import argparse
import resource
from time import perf_counter, process_time

from strandline.testing.history import History, check


def good_history(sends: int, partitions: int = 1, records_per_poll: int = 500, value_bytes: int = 100) -> History:
    history = History()
    padding = b"." * value_bytes
    values: list[list[bytes]] = [[] for _ in range(partitions)]
    for number in range(sends):
        partition = number % partitions
        value = (b"%d " % number + padding)[:value_bytes]
        history.invoke(f"producer-{partition % 4}", partition, value, session=1).ok(len(values[partition]), leader_epoch=3)
        values[partition].append(value)
        if number % 1000 == 0:
            history.latest("admin", partition, len(values[partition]), began_at=history.now())
    for process, final in (("consumer", False), ("last", True)):
        for partition, sent in enumerate(values):
            for first in range(0, len(sent), records_per_poll):
                began_at = history.now()
                records = [(o, bytes(bytearray(v))) for o, v in enumerate(sent[first : first + records_per_poll], first)]
                history.poll(process, partition, records, final=final, began_at=began_at)
    return history


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sends", type=int, default=1_000_000)
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--records-per-poll", type=int, default=500)
    arguments = parser.parse_args()
    history = good_history(arguments.sends, arguments.partitions, arguments.records_per_poll)
    operations = len(history.sends) + len(history.polls) + len(history.latests)
    before_mb, began, cpu = _memory_mb(), perf_counter(), process_time()
    verdict = check(history)
    print(verdict)
    print(f"{operations:,} operations judged in {perf_counter() - began:.1f} s ({process_time() - cpu:.1f} s of CPU)")
    print(f"memory: {before_mb:,.0f} MB with the history, {_memory_mb():,.0f} MB at most")


def _memory_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
