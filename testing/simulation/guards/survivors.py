"""Guards whose absence no instrument detects, with the reason: checked twice, out of reach, or a blind spot."""

from __future__ import annotations

_DEATHS = "no tried unit test cuts the power; `tests/testing/simulation/test_disk_log_deaths.py` does, and detects it"
_SLOW = "blind spot of this table: the tests that reach it take longer than the hunt's limit for one test"

WHY: dict[str, str] = {
    "G36": "checked twice: the controller also removes a fenced broker from the ISR, and G35 then resets its progress",
    "G73": "checked twice: the logs of a failed disk accept no write (G78), and the broker stops",
    "G90": _DEATHS,
    "G95": "blind spot: a reader would have to stop inside the truncated range and continue at exactly that offset afterwards",
    "G112": "blind spot: in no tried test does retention delete the batches of a named producer before a restart",
    "G120": "checked twice: the next condition uses such a snapshot for named producers only",
    "G121": "blind spot: in the tried tests recovery rebuilds the checkpoint from the batches, so the outcome is the same",
    "G123": "checked twice: a majority has voted for the known leader, and no voter votes twice in an epoch (G122)",
    "G126": "checked twice: the vote that follows the pre-vote compares the logs, too (G124)",
    "G143": "an assertion: `maybe_follow` has already rejected a second leader of the epoch",
    "G145": "an assertion: every caller has already compared the epochs",
    "G147": _SLOW,
    "G148": _SLOW,
    "G149": "blind spot: the voter would have to vote and die before the next fsync, which happens in the same loop iteration",
    "G153": "checked twice: a voter stops when it reads or truncates a damaged metadata log (G199)",
    "G160": "checked twice: the partition epoch is older, too (G162)",
    "G161": _SLOW,
    "G163": _SLOW,
    "G168": "out of reach: `_malformed` and `_ineligible` already reject a proposal without an eligible leader",
    "G170": _SLOW,
    "G174": _SLOW,
    "G183": "blind spot: no tried test recreates a topic while a producer uses it; `test_recreated_topics.py` was not tried",
    "G193": "out of reach: no broker of this version sends a batch that ends before the requested offset",
    "G198": "`tests/storage/test_malformed_batches.py` detects it; the hunt ended before it tried that one of 691 tests",
    "G257": "blind spot: no tried test lets the load of a coordinator fail",
    "G260": "blind spot: in no tried test does the leadership end in the very step that ends the load; G261 ends it before",
    "G287": "checked twice: the coordinator refuses the commit of a member epoch that has ended (G269)",
    "G289": "blind spot: in no tried test does the tenure end between the commit of a revocation and its callback",
}
"""Guard -> reason. Only those in the list of `table.survivors` are printed."""
