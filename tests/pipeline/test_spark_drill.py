"""The flagship drill, as a user starts it: each kind of process is killed, and an audit counts the records that are left.

`make drill` gives it three minutes of kills; here it has less, as a part of `make test-all`. In each run four other files kill
and judge the same, one job at a time: test_spark_standalone_killed.py, test_spark_killed.py, test_spark_audit.py and
test_spark_verify.py. Each run chooses a new seed and prints it; `STRANDLINE_DRILL_SEED` repeats one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

DRILL = Path(__file__).parents[2] / "examples" / "pipeline" / "drill.py"
MINUTES = float(os.environ.get("STRANDLINE_DRILL_MINUTES", "0.2"))


@pytest.mark.spark
@pytest.mark.slow
def test_nothing_is_lost_or_doubled_while_brokers_driver_and_executors_are_killed(tmp_path: Path) -> None:
    """Exactly-once end to end, with real processes and SIGKILL: a ledger of acknowledgements lists the records that must be in
    the log, in the lake and in the copy."""
    seed = os.environ.get("STRANDLINE_DRILL_SEED")
    command = [
        sys.executable,
        str(DRILL),
        "--minutes",
        str(MINUTES),
        "--folder",
        str(tmp_path),
        *(["--seed", seed] if seed else []),
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=900 + MINUTES * 60, check=False)
    result = json.loads(done.stdout.splitlines()[-1])
    print(result)
    assert (done.returncode, result["lost"], result["doubled"], result["bad"]) == (0, 0, 0, {})
    assert (result["ok"], result["bad_at_rest"]) == (True, [])
    assert result["at_rest"].startswith("sound: 8 partitions, 24 replicas")
    counts = result["counts"]
    assert counts["ledger"] == result["acknowledged"] > 0
    assert counts["lake"] == counts["copy"] == counts["log"]
    assert counts["log"] - counts["ledger"] <= result["unknown"]
    assert {"broker", "driver", "executor"} <= result["kills"].keys(), "each kind was killed at least once"
    assert result["driver_starts"] >= 2
    assert (tmp_path / "report.html").stat().st_size > 10_000
    assert (tmp_path / "verify.html").stat().st_size > 10_000
