"""The test files that take longest: they start first, so that at the end of a parallel run no process works alone."""

from __future__ import annotations

LONG_FILES = (
    "testing/simulation/test_sweep.py",
    "chaos/test_chaos_processes.py",
    "cli/test_cli_failover.py",
    "house/test_installs.py",
    "deploy/test_prometheus_live.py",
    "cli/test_cli_partial.py",
    "cli/test_cli_topics_and_records.py",
    "processes/test_faults.py",
    "processes/test_groups.py",
    "cli/test_cli_produce.py",
    "cli/test_cli_simulate.py",
    "processes/test_disks.py",
    "testing/simulation/test_hunt.py",
    "cli/test_cli_bad_input.py",
    "cli/test_cli_state.py",
    "cli/test_cli_config.py",
    "testing/kit/test_simulated.py",
    "testing/kit/test_kit_docs.py",
    "testing/kit/test_kit_examples.py",
    "secure/test_secure_cluster.py",
    "client/test_group_failures.py",
    "client/test_group_cluster.py",
)
"""Paths below tests/, the longest first. Without this list xdist would begin with the files that have most tests, and a file with
one test of half a minute would come last."""
