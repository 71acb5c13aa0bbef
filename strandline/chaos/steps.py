"""The vocabulary of scenario files: actions, conditions of `wait`, claims of `expect`, and targets.

Each has a table with the fields that a step takes. The parser, the reference page and the runner use these tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

NETWORK, SMALL_DISK = "network", "small-disk"
CAPABILITIES = {
    NETWORK: "nodes can be cut off from the cluster's network while clients still reach the brokers (compose)",
    SMALL_DISK: "one broker's data is on a small file system of its own (compose with small-disk.yml; locally as root)",
}

TARGET, TARGETS, NUMBER, COUNT, TEXT = "target", "targets", "number", "count", "text"

REQUIRED: Any = object()


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a step. `kind` is TARGET, TARGETS, NUMBER, COUNT, TEXT or "choice"; `choices` are those of the latter."""

    kind: str
    meaning: str
    default: Any = REQUIRED
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Word:
    """An action, a condition or a claim."""

    meaning: str
    fields: Mapping[str, Field]
    requires: str | None = None


TARGET_WORDS: Mapping[str, str] = {
    "leader": "the leader of partition 0",
    "follower": "the first in-sync follower of partition 0",
    "followers": "all in-sync followers of partition 0",
    "active-controller": "the leader of the controllers' quorum",
    "standby-controller": "the first controller that is not active",
    "every-broker": "all brokers, by number",
    "every-controller": "all controllers, by number",
    "every-node": "all brokers, then all controllers",
    "small-disk": "the broker whose data is on a small file system",
}

_NODES = Field(TARGETS, "the nodes")
_NODE = Field(TARGET, "the node")
_FAULTY = Field(TARGETS, "the nodes; by default all nodes with this fault", None)
_WITHIN = Field(NUMBER, "seconds after which the step fails", 30)
_ACKS = Field("choice", "acks of the request", "all", ("all", "1"))
_LEADER = Field(TARGET, "the broker that is asked", "leader")
_AS = Field(TEXT, "a name for these nodes in later steps", None)
_NOTE = Field(TEXT, "a sentence to print", "")

COMMON: Mapping[str, Field] = {"note": _NOTE}


def _fault(meaning: str, requires: str | None = None) -> Word:
    return Word(meaning, {"target": _NODES, "as": _AS}, requires)


def _heal(meaning: str, requires: str | None = None) -> Word:
    return Word(meaning, {"target": _FAULTY}, requires)


ACTIONS: Mapping[str, Word] = {
    "kill": _fault("send SIGKILL"),
    "stop": _fault("send SIGTERM, wait for the end, and check that the shutdown was clean"),
    "pause": _fault("freeze the processes; their connections stay open"),
    "disconnect": _fault("cut off from the cluster's network; clients still reach the brokers", NETWORK),
    "fill-disk": _fault("fill the small disk to the last byte with a ballast file", SMALL_DISK),
    "start": Word(
        "start nodes that are down",
        {"target": _FAULTY, "order": Field("choice", "in which order", "given", ("given", "reverse"))},
    ),
    "resume": _heal("let paused processes continue"),
    "reconnect": _heal("undo `disconnect`", NETWORK),
    "free-disk": _heal("remove the ballast file", SMALL_DISK),
    "lose-disk": _fault("take the data directory of a running broker away; the broker notices at its next write there"),
    "replace-disk": _heal("give a broker an empty data directory; one that still runs is killed first"),
    "drain": _fault("move the topic's leaders and replicas to the other brokers, as `strandline broker drain` does"),
    "undrain": _heal("let drained brokers get replicas again"),
    "elect": Word(
        "elect this broker uncleanly for every partition without a leader, as `strandline recover --apply` does",
        {"target": _NODE},
    ),
    "wipe": Word("remove all data of a node that is down", {"target": _NODES}),
    "restart": Word(
        "one node after the other: stop, check that the shutdown was clean, start, wait until all replicas are in sync",
        {"target": _NODES, "within_s": _WITHIN},
    ),
    "probe": Word(
        "from now on, send single raw produce requests for partition 0 to this broker, whether or not it is the leader",
        {"target": _NODE, "acks": _ACKS, "every_s": Field(NUMBER, "seconds between requests", 0.25)},
    ),
    "wait": Word("wait for a condition (`until`)", {}),
    "expect": Word("check a claim (`claim`)", {}),
}

CONDITIONS: Mapping[str, Word] = {
    "progress": Word(
        "this many more records are acknowledged",
        {"records": Field(COUNT, "number of records"), "within_s": _WITHIN},
    ),
    "in-sync": Word(
        "every partition has a leader, all its replicas are in its ISR, and every controller has caught up", {"within_s": _WITHIN}
    ),
    "leader-moved": Word("none of these brokers leads a partition", {"away_from": _NODES, "within_s": _WITHIN}),
    "controller-moved": Word("none of these controllers is active", {"away_from": _NODES, "within_s": _WITHIN}),
    "left-isr": Word("none of these brokers is in an ISR that has other members", {"target": _NODES, "within_s": _WITHIN}),
    "isr-is": Word("the ISR of partition 0 is exactly these brokers", {"target": _NODES, "within_s": _WITHIN}),
    "refilled": Word(
        "the broker is in every ISR, and joined none before its log reached the leader's high watermark",
        {"target": _NODE, "within_s": _WITHIN},
    ),
    "drained": Word("no partition has a replica on these brokers", {"target": _NODES, "within_s": _WITHIN}),
    "leaderless": Word("no partition has a leader", {"within_s": _WITHIN}),
    "ended": Word("the processes ended by themselves", {"target": _NODES, "within_s": _WITHIN}),
    "seconds": Word("this many seconds have passed", {"seconds": Field(NUMBER, "number of seconds")}),
}

CLAIMS: Mapping[str, Word] = {
    "refuses": Word(
        "a raw produce request returns this error",
        {"acks": _ACKS, "error": Field(TEXT, "the error code's name"), "target": _LEADER, "within_s": _WITHIN},
    ),
    "accepts": Word("a raw produce request is acknowledged; its record is remembered", {"acks": _ACKS, "target": _LEADER}),
    "invisible": Word("no remembered record is below the high watermark, and none is read", {"target": _LEADER}),
    "visible": Word("every remembered record is read", {"within_s": _WITHIN}),
    "gone": Word("no remembered record is read: a former leader truncated the records that only it had", {}),
    "still-believes": Word(
        "the broker's own metadata names it the leader of partition 0, in the leader epoch from before its fault",
        {"target": _NODE},
    ),
    "reads-go-on": Word("a new consumer reads everything from the beginning to the high watermark", {"within_s": _WITHIN}),
    "not-acknowledged": Word(
        "end the probes of this broker: at least one was sent, all have a response, and none is an acknowledgement",
        {"target": _NODE, "within_s": _WITHIN},
    ),
    "log-dir-offline": Word("the broker logged that its log directory is offline", {"target": _NODE, "within_s": _WITHIN}),
    "registered-anew": Word("the broker has a higher broker epoch than before its fault", {"target": _NODE, "within_s": _WITHIN}),
    "loss-reported": Word(
        "every partition has a report of an unclean election; the verdict then permits the loss of the records in its range", {}
    ),
    "gap-below": Word("no gap since the first fault is longer", {"seconds": Field(NUMBER, "the limit")}),
}
