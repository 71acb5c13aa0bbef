"""Guards that no instrument notices, with the reason: rejected twice, out of reach, or a blind spot."""

from __future__ import annotations

_DEATHS = "the unit tests asked cut no power; `tests/testing/simulation/test_disk_log_deaths.py` does, and notices"
_SLOW = "blind spot of this table: the tests that reach it take longer than the hunt gives one test"

WHY: dict[str, str] = {
    "G36": "refused twice: the controller takes a fenced broker out of the ISR with it, which forgets its progress, too (G35)",
    "G73": "refused twice: the logs of a disk that failed take no write (G78), and the broker ends",
    "G89": _DEATHS,
    "G90": _DEATHS,
    "G95": "blind spot: a reader would have to stop inside of what is cut and go on at that very offset afterwards",
    "G112": "blind spot: the tests asked have no named producer whose batches retention deletes before a restart",
    "G120": "refused twice: the next condition takes such a snapshot for named producers alone",
    "G121": "blind spot: the checkpoints of the tests asked are read again from the batches, so the outcome is the same",
    "G123": "refused twice: a majority has voted for the leader that is known, and none of it votes again (G122)",
    "G126": "refused twice: the vote that follows the pre-vote compares the logs as well (G124)",
    "G143": "an assertion: `maybe_follow` refuses a second leader of an epoch before",
    "G145": "an assertion: every caller compares the epochs before",
    "G147": _SLOW,
    "G148": _SLOW,
    "G149": "blind spot: the voter would have to act and die between the take-up and the next fsync, which follow in one turn",
    "G153": "refused twice: what reads or cuts a damaged metadata log stops the voter (G199)",
    "G160": "refused twice: the partition epoch is older as well (G162)",
    "G161": _SLOW,
    "G163": _SLOW,
    "G168": "out of reach: `_malformed` and `_ineligible` let no leader through that cannot lead any more",
    "G170": _SLOW,
    "G174": _SLOW,
    "G183": "blind spot: no test that was tried recreates a topic under a producer; `test_recreated_topics.py` was not tried",
    "G193": "out of reach: no broker of this version sends a batch that ends before the offset that was asked for",
    "G198": "`tests/storage/test_malformed_batches.py` notices; the hunt did not come to it among 691 tests that append",
}
"""Guard -> reason. Only those in the list of `table.survivors` are printed."""
