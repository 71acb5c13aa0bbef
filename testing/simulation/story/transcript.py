"""A run as a transcript: every message and every change of state, in the order in which they happened, without times.

    ## Broker 1 appends two more. Only broker 3 fetches them.

    client -> 1    Produce request: orders-0 1 record, acks=1
    1              appends 10 in epoch 0
    1 -> client    Produce response: orders-0 at 10
    1 -> 3         Fetch response: orders-0 10@e0, HW 10
    3              copies 10 (epoch 0)

A message appears at the place at which its sender writes it; a cut link or a hold may still delay or prevent its delivery. Left
out are messages that are no step of the protocol: heartbeats, metadata requests, fetches that name no partition, brokers' fetches
of metadata, and a fetch that is repeated in the same part. The start of the cluster is shown without messages.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from itertools import groupby

from strandline.testing.simulation.kernel.messages import Message
from strandline.testing.simulation.kernel.trace import WORLD, Event, Trace
from strandline.testing.simulation.story.drawing import WIDTH, draw
from strandline.testing.simulation.story.message_words import message_text
from strandline.testing.simulation.story.picture import CLIENTS_FROM, CONTROLLERS_FROM, Picture, name_of
from strandline.testing.simulation.story.sentences import Sentences

MESSAGE = "message"
"""The kind of the trace's events that `Recorder` adds."""

REDUNDANT = frozenset(
    {
        "client.acked",
        "client.read",
        "client.sent",
        "fetch.diverging",
        "isr.proposed",
        "log.rolled",
        "produce.acked",
        "produce.parked",
        "raft.high_watermark",
        "scenario.begins",
    }
)
"""Kinds of events that repeat the content of a message beside them, or that change no state of the protocol."""

_TOPIC_ID = re.compile(r"\b[0-9a-f]{32}\b")
_NUMBER = re.compile(r"\d+")
_LEFT = 16
"""Columns for the acting node."""


class Recorder:
    """Puts the messages of a network into the trace: `network.taps.append(Recorder(trace))`."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace

    def __call__(self, message: Message) -> None:
        if _is_metadata_fetch(message):
            return
        if text := message_text(message.body):
            kind = "request" if message.is_request else "response"
            self.trace.emit(MESSAGE, message.source, to=message.target, text=f"{message.api} {kind}: {text}")


def _is_metadata_fetch(message: Message) -> bool:
    """Whether the message travels between a broker and a controller, and fetches metadata."""
    pair = sorted((message.source, message.target))
    return message.api == "Fetch" and pair[0] < CONTROLLERS_FROM <= pair[1] < CLIENTS_FROM


def transcript(trace: Trace, title: str) -> str:
    """The text of a run whose trace is complete and was recorded with a `Recorder`. It has the headings of the story, and draws
    the logs at the end of each part in which they have changed."""
    events = trace.events()
    names = {event.fields["topic_id"]: event.fields["name"] for event in events if event.kind == "metadata.topic"}
    names["0" * 31 + "1"] = "__cluster_metadata"
    lines = [*(f"# {line}" for line in title.splitlines()), ""]
    writer = _Writer(names)
    for event in events:
        lines += writer.lines(event)
    return "\n".join(line.rstrip() for line in [*lines, *writer.end()]) + "\n"


class _Writer:
    def __init__(self, names: dict[str, str]) -> None:
        self._names = names
        self._picture = Picture()
        self._sentences = Sentences(
            self._picture, several=sum(not name.startswith("__") for name in names.values()) > 1, brief=True
        )
        self._is_started = False
        """Whether the first heading of the story has been written."""
        self._part: list[str] = []
        """Lines since the last heading."""
        self._seen: set[str] = set()
        """The fetches that are already in this part."""
        self._drawn = ""

    def lines(self, event: Event) -> Iterator[str]:
        if event.kind in ("scenario.says", "phase"):
            yield from self.end()
            yield from self._heading(event)
        elif event.kind == MESSAGE:
            self._message(event)
        elif _changes_state(event):
            self._state(event)
        self._picture.on(event)

    def end(self) -> Iterator[str]:
        """The lines of the part, and the logs of all replicas, if they are not those that were drawn last."""
        yield from _rounds(self._part)
        self._part = []
        self._seen.clear()
        names = [name for name in sorted(self._picture.replicas) if not name.startswith("__")]
        text = "\n".join(line for name in names for line in _titled(name, draw(self._picture, name)))
        if text and text != self._drawn:
            self._drawn = text
            yield from ["", *text.splitlines()]

    def _heading(self, event: Event) -> Iterator[str]:
        text = self._sentences.of(event) if event.kind == "phase" else str(event.fields["text"])
        yield ""
        yield from textwrap.wrap(text, WIDTH, initial_indent="## ", subsequent_indent="## ", break_on_hyphens=False)
        yield ""
        self._is_started = True

    def _message(self, event: Event) -> None:
        if not self._is_started:
            return
        text = _TOPIC_ID.sub(lambda found: self._names.get(found[0], found[0]), event.fields["text"])
        lines = _line(f"{_short(event.node)} -> {_short(event.fields['to'])}", text)
        if not text.startswith("Fetch ") or lines[0] not in self._seen:
            self._seen.add(lines[0])
            self._part += lines

    def _state(self, event: Event) -> None:
        lines = _line(*_apart(event, self._sentences))
        if lines != self._part[-len(lines) :]:
            self._part += lines


def _rounds(lines: list[str]) -> Iterator[str]:
    """Leave out rounds in which a client writes one more batch and all else is as in the round before. The first two and the last
    remain."""
    rounds: list[list[str]] = [[]]
    for line in lines:
        if line.startswith("client ->") and " Produce request: " in line:
            rounds.append([])
        rounds[-1].append(line)
    for _, each in groupby(rounds, key=lambda part: [_NUMBER.sub("#", line) for line in part]):
        same = list(each)
        left_out = len(same) - 3
        for number, part in enumerate(same):
            if left_out > 0 and number == 2:
                yield f"{'':{_LEFT}}... {left_out} more of these ..."
            if left_out <= 0 or not 2 <= number < 2 + left_out:
                yield from part


def _titled(name: str, lines: list[str]) -> list[str]:
    return [name, *lines] if lines else []


def _changes_state(event: Event) -> bool:
    if event.kind.startswith("log.") and "level" in event.fields:
        return event.fields["level"] in ("error", "critical")
    return event.kind not in REDUNDANT


def _short(node: int) -> str:
    return "client" if node >= CLIENTS_FROM else str(node)


def _apart(event: Event, sentences: Sentences) -> tuple[str, str]:
    """The node of an event, and the sentence about the event without the name of the node."""
    if event.kind == "hw.advanced":
        of = f" of {event.partition}" if sentences.several else ""
        return _short(event.node), f"HW{of} is {event.fields['hw']}"
    sentence, name = sentences.of(event), name_of(event.node)
    if event.node != WORLD and sentence.startswith(f"{name} "):
        return _short(event.node), sentence.removeprefix(f"{name} ")
    return "", sentence


def _line(sender: str, text: str) -> list[str]:
    indent = " " * _LEFT
    return textwrap.wrap(text, WIDTH + 20, initial_indent=f"{sender:<{_LEFT - 1}} ", subsequent_indent=f"{indent}  ")
