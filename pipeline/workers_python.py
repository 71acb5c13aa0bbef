"""The Python that Spark starts for its workers, and whether it has Strandline.

Spark starts the program that PYSPARK_PYTHON names, and without that variable the first `python3` of the PATH. A program that
runs as `.venv/bin/python app.py`, without an activated environment, therefore gets workers without the packages of `.venv`, and
Spark reports DATA_SOURCE_NOT_FOUND. On one machine the workers can use the driver's own Python. On a cluster the user must name
one that every machine has; what can be checked there is the driver's machine, where Spark plans each query with that Python.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from strandline.protocol.errors import UsageError

VARIABLE = "PYSPARK_PYTHON"
ARCHIVES = (".zip", ".egg", ".whl", ".jar")
"""Archives shipped with a job (`--py-files`) are in the driver's path, and Spark passes them to the workers."""
PROBE = "import strandline.client, pyarrow"
PROBE_TIMEOUT_S = 60


def python_for_workers(chosen: str, executable: str, master: str, environ: Mapping[str, str] = os.environ) -> str:
    """The Python that the workers should use in place of `chosen`, which Spark would start.

    `executable` is the driver's Python and `master` Spark's master URL ("local..." runs everything on this machine). Raises
    UsageError if the Python does not exist or cannot import Strandline."""
    if _same_program(chosen, executable, environ):
        return chosen
    if master.startswith("local") and not environ.get(VARIABLE):
        return executable
    found = shutil.which(chosen, path=environ.get("PATH"))
    if found is None:
        raise UsageError(f"Spark's workers are to use {chosen!r}, which this machine does not have; {_advice(executable)}")
    if (missing := _what_fails(found, environ)) is not None:
        raise UsageError(f"Spark's workers use {found}, which cannot import Strandline ({missing}); {_advice(executable)}")
    return chosen


def _same_program(chosen: str, executable: str, environ: Mapping[str, str]) -> bool:
    """Whether both programs lie in one folder, where `python`, `python3` and `python3.11` are the same. Links are not followed,
    because the `python` of a virtual environment is a link to a Python without its packages."""
    found = shutil.which(chosen, path=environ.get("PATH"))
    return found is not None and Path(found).absolute().parent == Path(executable).absolute().parent


def _what_fails(python: str, environ: Mapping[str, str]) -> str | None:
    """Runs the program once. Returns None if it can import what a worker needs, else the last line of its error."""
    archives = [entry for entry in sys.path if entry.endswith(ARCHIVES) and Path(entry).is_file()]
    paths = [*archives, *filter(None, [environ.get("PYTHONPATH")])]
    own = {**environ, "PYTHONPATH": os.pathsep.join(paths)}
    try:
        done = subprocess.run(
            [python, "-c", PROBE], env=own, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as e:
        return str(e)
    lines = done.stderr.strip().splitlines()
    return None if done.returncode == 0 else lines[-1] if lines else f"it ended with {done.returncode}"


def _advice(executable: str) -> str:
    return (
        f"set the environment variable {VARIABLE} to a Python that has it, under the same path on every machine, before the "
        f"session starts (this program runs {executable})"
    )
