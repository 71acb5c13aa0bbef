"""The words of a scenario file: what can be done, what can be waited for, what can be claimed.

One table each, with the fields a step takes; parsing, the reference page and the runner all go by these tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

NETWORK, SMALL_DISK = "network", "small-disk"
CAPABILITIES = {
    NETWORK: "nodes can be cut off the cluster's network, while clients still reach the brokers (compose)",
    SMALL_DISK: "one broker's data lies on a small file system of its own (compose with small-disk.yml; locally for root)",
}

TARGET, TARGETS, NUMBER, COUNT, TEXT = "target", "targets", "number", "count", "text"

REQUIRED: Any = object()


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a step. `kind` is one of the words above, or "choice"."""

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
    is_fault: bool = False
    """Takes something away from the cluster: the gap between acknowledgements is looked at from here on."""
    is_mend: bool = False
    """Gives it back."""


TARGET_WORDS: Mapping[str, str] = {
    "leader": "the leader of partition 0",
    "follower": "the first in-sync replica of partition 0 that does not lead it",
    "followers": "all in-sync replicas of partition 0 but its leader",
    "active-controller": "the leader of the controllers' quorum",
    "standby-controller": "the first controller that is not the active one",
    "every-broker": "all of them, by number",
    "every-controller": "all of them, by number",
    "every-node": "all brokers, then all controllers",
    "small-disk": "the broker whose data lies on a small file system",
}

_WHO = Field(TARGETS, "who")
_ONE = Field(TARGET, "who")
_BROKEN = Field(TARGETS, "who; without it all to whom it was done", None)
_WITHIN = Field(NUMBER, "seconds until it counts as failed", 30)
_ACKS = Field("choice", "acks of the request", "all", ("all", "1"))
_LEADER = Field(TARGET, "who is asked", "leader")
_AS = Field(TEXT, "a name for whoever it is now, for later steps", None)
_NOTE = Field(TEXT, "a sentence to print", "")

COMMON: Mapping[str, Field] = {"note": _NOTE}


def _fault(meaning: str, requires: str | None = None) -> Word:
    return Word(meaning, {"target": _WHO, "as": _AS}, requires, is_fault=True)


def _mend(meaning: str, requires: str | None = None) -> Word:
    return Word(meaning, {"target": _BROKEN}, requires, is_mend=True)


ACTIONS: Mapping[str, Word] = {
    "kill": _fault("SIGKILL: no last word"),
    "stop": _fault("SIGTERM, and wait for the end, which has to be a clean one"),
    "pause": _fault("the processes stand still; their connections stay"),
    "disconnect": _fault("cut off the cluster's network; brokers stay reachable for clients", NETWORK),
    "fill-disk": _fault("a ballast file takes the last byte of the small disk", SMALL_DISK),
    "start": Word(
        "start who is down",
        {"target": _BROKEN, "order": Field("choice", "in which order", "given", ("given", "reverse"))},
        is_mend=True,
    ),
    "resume": _mend("let who stands still go on"),
    "reconnect": _mend("undo disconnect", NETWORK),
    "free-disk": _mend("take the ballast away again", SMALL_DISK),
    "wipe": Word("remove all data of a node that is down", {"target": _WHO}),
    "restart": Word(
        "one after the other: stop, check that it was a clean end, start, wait until all is in sync",
        {"target": _WHO, "within_s": _WITHIN},
        is_fault=True,
    ),
    "probe": Word(
        "from now on, send single raw produce requests straight to a broker that is believed to lead partition 0",
        {"target": _ONE, "acks": _ACKS, "every_s": Field(NUMBER, "seconds between requests", 0.25)},
    ),
    "wait": Word("wait for a condition (`until`)", {}),
    "expect": Word("check a claim (`claim`)", {}),
}

CONDITIONS: Mapping[str, Word] = {
    "progress": Word(
        "so many more records were acknowledged",
        {"records": Field(COUNT, "how many"), "within_s": _WITHIN},
    ),
    "in-sync": Word("every partition has a leader and all replicas in its ISR", {"within_s": _WITHIN}),
    "leader-moved": Word("nobody of these leads any partition", {"away_from": _WHO, "within_s": _WITHIN}),
    "controller-moved": Word("none of these is the active controller", {"away_from": _WHO, "within_s": _WITHIN}),
    "left-isr": Word("none of these is in any ISR, but where alone", {"target": _WHO, "within_s": _WITHIN}),
    "isr-is": Word("partition 0 has an ISR of exactly these", {"target": _WHO, "within_s": _WITHIN}),
    "refilled": Word(
        "it is in every ISR; never counted in before its log reached the leader's high watermark",
        {"target": _ONE, "within_s": _WITHIN},
    ),
    "ended": Word("their processes ended by themselves", {"target": _WHO, "within_s": _WITHIN}),
    "seconds": Word("time passes", {"seconds": Field(NUMBER, "how many")}),
}

CLAIMS: Mapping[str, Word] = {
    "refuses": Word(
        "a raw produce request is answered with this error",
        {"acks": _ACKS, "error": Field(TEXT, "the error code's name"), "target": _LEADER, "within_s": _WITHIN},
    ),
    "accepts": Word("a raw produce request is acknowledged; its record is remembered", {"acks": _ACKS, "target": _LEADER}),
    "invisible": Word("no remembered record is below the high watermark, and none is read", {"target": _LEADER}),
    "visible": Word("every remembered record is read", {"within_s": _WITHIN}),
    "gone": Word("no remembered record is read: what only an old leader had was cut off", {}),
    "still-believes": Word(
        "asked itself, it names itself the leader of partition 0, in the leader epoch that it had before its fault",
        {"target": _ONE},
    ),
    "reads-go-on": Word("a new consumer reads everything from the beginning to the high watermark", {"within_s": _WITHIN}),
    "not-acknowledged": Word(
        "the probes of this broker end now: some were sent, all have an answer, and none is an acknowledgement",
        {"target": _ONE, "within_s": _WITHIN},
    ),
    "log-dir-offline": Word("it said that its log directory is offline", {"target": _ONE, "within_s": _WITHIN}),
    "registered-anew": Word("it has a newer broker epoch than before its fault", {"target": _ONE, "within_s": _WITHIN}),
    "gap-below": Word("no gap so far was longer", {"seconds": Field(NUMBER, "the limit")}),
}
