"""Prints how this Python was built. With profile-guided optimisation (PGO) processes need a third less CPU, so `make bench` names
the build with its figures, and `make` uses an optimised Python if the machine has one (.ci/find-python).

    python3.11 benchmarks/python_build.py             CPython 3.11.9, built with PGO and LTO
    python3.11 benchmarks/python_build.py --rank      "optimised" or "plain"; exit code 1 for a Python that cannot be used here
"""

from __future__ import annotations

import platform
import sys
import sysconfig
from collections.abc import Mapping
from typing import Any


def has_pgo(variables: Mapping[str, Any]) -> bool:
    """Return True if CONFIG_ARGS has `--enable-optimizations`, or if it is Debian's build. Debian runs PGO with a `make` of its
    own, without the option, and empties the PGO flag in the installed configuration; an unoptimised build keeps the flag."""
    if "--enable-optimizations" in str(variables.get("CONFIG_ARGS") or ""):
        return True
    return bool(variables.get("PGO_PROF_GEN_FLAG")) and variables.get("PGO_PROF_USE_FLAG") == ""


def has_lto(variables: Mapping[str, Any]) -> bool:
    arguments = str(variables.get("CONFIG_ARGS") or "")
    return "--with-lto" in arguments and "--with-lto=no" not in arguments


def describe(version: str, variables: Mapping[str, Any]) -> str:
    """Describe the build in one clause for the head of a table. LTO is named only if the configuration shows it."""
    features = [name for name, there in (("PGO", has_pgo(variables)), ("LTO", has_lto(variables))) if there]
    how = (
        f"built with {' and '.join(features)}"
        if features
        else "built without PGO and LTO: about a third slower than an optimised build"
    )
    return f"{version}, {how}{', debug' if variables.get('Py_DEBUG') else ''}"


def this_python() -> str:
    return describe(f"{platform.python_implementation()} {platform.python_version()}", sysconfig.get_config_vars())


def _rank() -> str:
    import ensurepip  # noqa: F401
    import venv  # noqa: F401

    if sys.version_info < (3, 11):  # noqa: UP036 - any Python may be asked
        sys.exit(1)
    return "optimised" if has_pgo(sysconfig.get_config_vars()) else "plain"


if __name__ == "__main__":
    print(_rank() if "--rank" in sys.argv else this_python())
