"""A cluster with faults for your tests, and oracles that judge what its clients saw and what its logs hold.

These are the public names. They are imported on first use, because pytest loads the plugin (`plugin.py`) of this package in every
run, also in runs that do not use it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from strandline.testing.history import History, Verdict, check
    from strandline.testing.kit.cluster import Cluster
    from strandline.testing.kit.conditions import (
        Condition,
        caught_up,
        cleaned,
        controller,
        epoch,
        fenced,
        hits,
        hw,
        isr,
        leader,
        leaderless,
        log_end,
    )
    from strandline.testing.kit.nodes import KitError
    from strandline.testing.kit.simulated.decorator import simulated
    from strandline.testing.kit.threaded import ThreadedCluster
    from strandline.testing.kit.view import NodeView, PartitionView
    from strandline.testing.kit.waiting import NotInTime
    from strandline.testing.replicas import compare_replicas

__all__ = [
    "Cluster",
    "Condition",
    "History",
    "KitError",
    "NodeView",
    "NotInTime",
    "PartitionView",
    "ThreadedCluster",
    "Verdict",
    "caught_up",
    "check",
    "cleaned",
    "compare_replicas",
    "controller",
    "epoch",
    "fenced",
    "hits",
    "hw",
    "isr",
    "leader",
    "leaderless",
    "log_end",
    "simulated",
]

_CONDITIONS = "strandline.testing.kit.conditions"
_HOMES = {
    "Cluster": "strandline.testing.kit.cluster",
    "Condition": _CONDITIONS,
    "History": "strandline.testing.history",
    "KitError": "strandline.testing.kit.nodes",
    "NodeView": "strandline.testing.kit.view",
    "NotInTime": "strandline.testing.kit.waiting",
    "PartitionView": "strandline.testing.kit.view",
    "ThreadedCluster": "strandline.testing.kit.threaded",
    "Verdict": "strandline.testing.history",
    "caught_up": _CONDITIONS,
    "check": "strandline.testing.history",
    "cleaned": _CONDITIONS,
    "compare_replicas": "strandline.testing.replicas",
    "controller": _CONDITIONS,
    "epoch": _CONDITIONS,
    "fenced": _CONDITIONS,
    "hits": _CONDITIONS,
    "hw": _CONDITIONS,
    "isr": _CONDITIONS,
    "leader": _CONDITIONS,
    "leaderless": _CONDITIONS,
    "log_end": _CONDITIONS,
    "simulated": "strandline.testing.kit.simulated.decorator",
}


if not TYPE_CHECKING:  # To a type checker, a module with __getattr__ would have every name that is misspelled.

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
