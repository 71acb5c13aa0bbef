"""The tools that check the files of deploy/: Debian packages that a machine may lack.

Without its tool a test is skipped with a reason. The build machine installs all of them and sets STRANDLINE_REQUIRE_TOOLS=1,
so that a missing tool is a failure.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"

PACKAGES = {
    "systemd-analyze": "systemd",
    "systemd-sysusers": "systemd",
    "promtool": "prometheus",
    "prometheus": "prometheus",
}
"""tool -> the Debian package that brings it"""


def tool(name: str) -> str:
    """Return the tool's path; skip or fail the test if it is missing."""
    path = shutil.which(name)
    if path is not None:
        return path
    reason = f"{name} is not installed (Debian package {PACKAGES[name]})"
    if os.environ.get("STRANDLINE_REQUIRE_TOOLS") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


def check(*command: str | Path, cwd: Path | None = None) -> str:
    """Run a tool, check that it succeeds, and return its output."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, cwd=cwd, timeout=60, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0, f"{Path(str(command[0])).name} says:\n{said}"
    return said
