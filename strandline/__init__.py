"""Strandline: a replicated log with Kafka's replication, in Python.

The public face. `Producer`, `Consumer`, `Admin` and `LocalCluster` are imported on first use, so that the command line
and the nodes of a cluster start quickly.
"""

from __future__ import annotations

import os.path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from strandline.client import Admin, Consumer, Producer
    from strandline.local_cluster import LocalCluster

__all__ = ["Admin", "Consumer", "LocalCluster", "Producer"]

_HOMES = {
    "Admin": "strandline.client",
    "Consumer": "strandline.client",
    "Producer": "strandline.client",
    "LocalCluster": "strandline.local_cluster",
}

_HERE = os.path.dirname(__file__)
if not os.path.isdir(os.path.join(_HERE, "client")):
    # A checkout: the sub-packages are the folders beside this one. Whoever runs a script from there has this very file
    # before the installed one on his path, and would find nothing else of it.
    __path__.append(os.path.dirname(_HERE))


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
