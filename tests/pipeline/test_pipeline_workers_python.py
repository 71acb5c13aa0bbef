"""`workers_python.py`: Spark's workers never use a Python without Strandline unless an error says so."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from strandline.pipeline.workers_python import python_for_workers
from strandline.protocol.errors import UsageError


def program(folder: Path, name: str, line: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A Python without packages, such as the `python3` of a machine."""
    return program(tmp_path / "bare", "python3", f'exec "{sys.executable}" -I -S "$@"')


@pytest.mark.parametrize("master", ["local", "local[2]", "local-cluster[2,1,1024]"])
def test_local_workers_use_the_drivers_python(bare: Path, master: str) -> None:
    """With `.venv/bin/python app.py` and no activated environment, Spark would start the first `python3` of the PATH."""
    environ = {"PATH": str(bare.parent)}
    assert python_for_workers("python3", sys.executable, master, environ) == sys.executable


def test_python_of_the_activated_environment_is_kept() -> None:
    """`python3` and `python` of one folder are the same, and the workers of a cluster look up `python3` by name."""
    environ = {"PATH": str(Path(sys.executable).parent)}
    assert python_for_workers("python3", sys.executable, "spark://head:7077", environ) == "python3"


@pytest.mark.parametrize("master", ["local[2]", "spark://head:7077"])
def test_named_python_without_strandline_is_rejected(bare: Path, master: str) -> None:
    """The user's choice is never replaced, not even on one machine: an error now is better than a failure in each task."""
    with pytest.raises(UsageError) as error:
        python_for_workers(str(bare), sys.executable, master, {"PYSPARK_PYTHON": str(bare), "PATH": "/nowhere"})
    assert str(error.value).startswith(f"Spark's workers use {bare}, which cannot import Strandline (ModuleNotFoundError: ")
    assert "set the environment variable PYSPARK_PYTHON to a Python that has it" in str(error.value)
    assert str(error.value).endswith(f"(this program runs {sys.executable})")


def test_unnamed_python_of_a_cluster_is_checked_on_this_machine(bare: Path) -> None:
    with pytest.raises(UsageError, match=f"Spark's workers use {bare}, which cannot import Strandline"):
        python_for_workers("python3", sys.executable, "yarn", {"PATH": str(bare.parent)})


def test_missing_python_is_rejected() -> None:
    with pytest.raises(UsageError, match="workers are to use '/opt/python', which this machine does not have"):
        python_for_workers("/opt/python", sys.executable, "yarn", {"PYSPARK_PYTHON": "/opt/python"})


def test_other_python_with_strandline_is_used(tmp_path: Path) -> None:
    other = program(tmp_path / "other", "python", f'exec "{sys.executable}" "$@"')
    assert python_for_workers(str(other), sys.executable, "yarn", {"PYSPARK_PYTHON": str(other)}) == str(other)


def test_package_shipped_with_the_job_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The archives of `--py-files` are in the driver's path, and Spark passes them to the workers."""
    line = 'case "$PYTHONPATH" in */shipped.zip:/more) ;; *) echo "no archive" >&2; exit 1 ;; esac'
    python = program(tmp_path / "other", "python", line)
    environ = {"PYTHONPATH": "/more", "PATH": "/usr/bin:/bin"}
    with pytest.raises(UsageError, match=r"cannot import Strandline \(no archive\)"):
        python_for_workers(str(python), sys.executable, "yarn", environ)
    (tmp_path / "shipped.zip").touch()
    monkeypatch.syspath_prepend(str(tmp_path / "shipped.zip"))
    assert python_for_workers(str(python), sys.executable, "yarn", environ) == str(python)
