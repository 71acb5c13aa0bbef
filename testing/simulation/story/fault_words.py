"""Describes in a few words the effect of each fault of the nemesis, and on which nodes. Unknown kinds are described by their
fields."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from strandline.testing.simulation.kernel.trace import WORLD, Event
from strandline.testing.simulation.story.picture import NODE_FIELDS, listed, name_of, names_of, nodes_of

BY_NODE_EVENTS = frozenset({"crash", "power", "controller_kill", "stop", "pause"})
"""Faults that an event of the node reports as well (`node.crashed`), with more detail."""


def fault_text(event: Event) -> str:
    """The fault as a clause: "broker 1 is cut off from all others"."""
    said = {name: value for name, value in event.fields.items() if value is not None}
    nodes = nodes_of(event)
    if isinstance(said.get("text"), str):
        return str(said["text"])
    clause = _clause(event)
    if clause is not None:
        return clause
    rest = {name: value for name, value in said.items() if name not in ("fault", "number", *NODE_FIELDS)}
    whom = f", {names_of(nodes)}" if nodes else ""
    return f"{fault_name(event)}{whom}{fields_text(rest, ' (', ')')}"


def _clause(event: Event) -> str | None:
    said, nodes = event.fields, nodes_of(event)
    teller = TELLERS.get(str(said.get("fault")))
    if teller is None:
        return None
    victim = said.get("victim", event.node)
    with contextlib.suppress(KeyError, IndexError, TypeError):  # a field that the words need is missing
        return teller(nodes[0] if victim == WORLD and nodes else victim, nodes, said)
    return None


def over_text(begun: Event) -> str:
    """The clause for the end of the fault."""
    nodes = nodes_of(begun)
    if begun.fields.get("fault") in ("cut", "cut_node", "cut_pair") and nodes:
        return f"{names_of(nodes)} {'are' if len(nodes) > 1 else 'is'} no longer cut off"
    return f"fault ends: {fault_text(begun)}"


def fault_name(event: Event) -> str:
    return str(event.fields.get("fault", "fault")).replace("_", " ")


def fields_text(fields: Mapping[str, Any], before: str, after: str = "") -> str:
    """The fields of an event as a text between two others; empty if there are none."""
    listing = ", ".join(f"{name.replace('_', ' ')} {short(value)}" for name, value in fields.items())
    return f"{before}{listing}{after}" if listing else ""


def short(value: object) -> str:
    """The value of a field, for people."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {short(each)}" for name, each in value.items())
    if isinstance(value, list | tuple):
        return "{" + ("," if all(isinstance(each, int) for each in value) else ", ").join(map(short, value)) + "}"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def brief(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a seed, shortened: lists show the kinds or names of their entries, settings only their number."""
    return {name: _brief(value) for name, value in options.items()}


def _brief(value: object) -> object:
    if isinstance(value, Mapping):
        return f"{len(value)} set"
    if isinstance(value, list | tuple) and value and all(isinstance(each, Mapping) for each in value):
        for key in ("kind", "name", "topic"):
            if all(key in each for each in value):
                counts = Counter(str(each[key]) for each in value)
                return [f"{count} {name}" if count > 1 else name for name, count in sorted(counts.items())]
        return len(value)
    return value


Said = Mapping[str, Any]


def _cut(node: int, nodes: Sequence[int], said: Said) -> str:
    if "a" in said and "b" in said:
        return _cut_pair(node, nodes, said)
    others = said.get("others") or [other for other in nodes if other != node]
    how = ""
    if said.get("inbound") is False:
        how = ", one way: it receives messages, but its own do not arrive"
    elif said.get("outbound") is False:
        how = ", one way: its own messages arrive, but it receives none"
    return f"{name_of(node)} is cut off from {names_of(others) if others else 'all others'}{how}"


def _cut_pair(node: int, nodes: Sequence[int], said: Said) -> str:
    return f"{names_of(nodes)} are cut off from each other"


def _cut_one_way(node: int, nodes: Sequence[int], said: Said) -> str:
    if "source" not in said:
        return f"no message to {name_of(node)} arrives"
    return f"no message from {name_of(said['source'])} arrives at {name_of(said['target'])}"


def _half_open(node: int, nodes: Sequence[int], said: Said) -> str:
    return f"every message {'from' if said.get('direction') == 'out' else 'to'} {name_of(node)} is lost silently"


def _partition(node: int, nodes: Sequence[int], said: Said) -> str:
    return f"the network is split: {names_of(said['side'])} on one side"


def _swizzle(node: int, nodes: Sequence[int], said: Said) -> str:
    back = listed(map(str, said["back"]))
    return f"{names_of(nodes)} are cut off one by one, and reconnected in the order {back}"


def _clog(node: int, nodes: Sequence[int], said: Said) -> str:
    return f"the links of {names_of(nodes)} are clogged: messages wait"


def _delay(node: int, nodes: Sequence[int], said: Said) -> str:
    late = f" up to {said['jitter_s']:g} s" if "jitter_s" in said else ""
    return f"messages of {names_of(nodes)} arrive{late} late"


def _narrow(node: int, nodes: Sequence[int], said: Said) -> str:
    return f"the links of {names_of(nodes)} carry {said['bytes_per_s']:,} bytes per second"


def _loss(node: int, nodes: Sequence[int], said: Said) -> str:
    return f"{said['loss']:.0%} of the messages of {names_of(nodes)} are lost and retransmitted"


def _reset(node: int, nodes: Sequence[int], said: Said) -> str:
    count = said["connections"]
    return f"{_connections(count)} of {name_of(node)} {'break' if count > 1 else 'breaks'}"


def _fragment(node: int, nodes: Sequence[int], said: Said) -> str:
    return f"{name_of(node)} reads a few bytes at a time"


def _slow_reader(node: int, nodes: Sequence[int], said: Said) -> str:
    return f"{name_of(node)} reads what has arrived {said['delay_s']:g} s late"


def _mute(node: int, nodes: Sequence[int], said: Said) -> str:
    count = said["connections"]
    return f"{_connections(count)} of {name_of(node)} {'are' if count > 1 else 'is'} silently dead"


def _connections(count: int) -> str:
    return f"{count} connection{'s' if count > 1 else ''}"


def _cold_reads(node: int, nodes: Sequence[int], said: Said) -> str:
    return f"{said['probability']:.0%} of what {name_of(said['victim'])} reads is not in its page cache"


def _messages(said: Said) -> str:
    return f"{said['api']} {'requests' if said['is_request'] else 'responses'}"


def _reset_response(node: int, nodes: Sequence[int], said: Said) -> str:
    if said["times"] > 1:
        return f"a connection breaks at each of the next {said['times']} {_messages(said)}"
    return f"a connection breaks at the next {_messages(said).removesuffix('s')}"


def _hold(node: int, nodes: Sequence[int], said: Said) -> str:
    whose = f" of {names_of(nodes)}" if nodes else ""
    return f"{_messages(said)}{whose} are held back" if "api" in said else f"messages{whose} are held back"


def _blackout(node: int, nodes: Sequence[int], said: Said) -> str:
    return f"{names_of(nodes)} {'die' if len(nodes) > 1 else 'dies'} at once"


def _power_many(node: int, nodes: Sequence[int], said: Said) -> str:
    return f"{names_of(nodes)} lose their power, or die, one soon after the other"


def _left_out(what: str) -> Callable[[int, Sequence[int], Said], str]:
    """The words for a node that stays broken while the others heal."""
    return lambda node, nodes, said: f"{name_of(node)} {what}, and stays so while the others recover"


def _rolling(node: int, nodes: Sequence[int], said: Said) -> str:
    return f"{names_of(nodes)} are stopped and restarted, one after the other"


def _crash_in_disk(node: int, nodes: Sequence[int], said: Said) -> str:
    where = "" if said["pattern"] == "*" else f" on {said['pattern']}"
    return f"{name_of(node)} will die during operation {said['operation']}{where} of its disk"


def _crash_in_start(node: int, nodes: Sequence[int], said: Said) -> str:
    return f"{name_of(node)} died, restarts, and will die again during the start"


def _wipe(node: int, nodes: Sequence[int], said: Said) -> str:
    return f"the disk of {name_of(node)} is lost; the node will return with an empty one"


def _wipe_last(node: int, nodes: Sequence[int], said: Said) -> str:
    return f"all other brokers die, and then the disk of {names_of(nodes)} is lost"


def _wiped_voter(node: int, nodes: Sequence[int], said: Said) -> str:
    return f"{names_of(said['behind'])} miss a committed record, {names_of(nodes)} loses it, and {names_of(said['others'])} die"


def _stop_power(node: int, nodes: Sequence[int], said: Said) -> str:
    return f"{name_of(node)} shuts down cleanly, restarts, and will soon lose its power"


def _disk_slow(node: int, nodes: Sequence[int], said: Said) -> str:
    return f"the disk of {name_of(node)} is {said['factor']:g} times as slow"


def _disk_stall(node: int, nodes: Sequence[int], said: Said) -> str:
    what = "" if said["operation"] == "*" else f" at a {said['operation']}"
    return f"the disk of {name_of(node)} hangs for {said['seconds']:g} s{what}"


def _disk_error(node: int, nodes: Sequence[int], said: Said) -> str:
    where = "" if said["pattern"] == "*" else f" of {said['pattern']}"
    return f"the disk of {name_of(node)} fails: {said['operation']}{where} gives {said['error']}"


def _dir_fails(node: int, nodes: Sequence[int], said: Said) -> str:
    return f"the log directory {said['path']} of {name_of(node)} fails"


def _disk_fsync(node: int, nodes: Sequence[int], said: Said) -> str:
    return f"an fsync of {name_of(node)} fails, and the data that it should have written is lost"


def _disk_full(node: int, nodes: Sequence[int], said: Said) -> str:
    room = f", except for {said['room_bytes']} bytes" if said.get("room_bytes") else ""
    return f"the disk of {name_of(node)} is full{room}"


def _rot(node: int, nodes: Sequence[int], said: Said) -> str:
    flips, where = said["flips"], f"the {_files(said['pattern'])} of {name_of(node)}"
    if not flips:
        return f"no bit flips in {where}: they are still empty"
    return f"{flips} {'bits flip' if flips > 1 else 'bit flips'} in {where}"


def _misdirect(node: int, nodes: Sequence[int], said: Said) -> str:
    where = "elsewhere in the same file" if said.get("onto") is None else f"somewhere in its {_files(said['onto'])}"
    when = ", which shows when the page cache no longer has it" if said["hidden"] else ""
    return f"a write to a log of {name_of(node)} lands {where}{when}"


def _stale_read(node: int, nodes: Sequence[int], said: Said) -> str:
    return f"reads of the logs of {name_of(node)} return old content"


def _files(pattern: str) -> str:
    """The files of a broker's disk that the fault strikes."""
    return {".log": "logs", ".index": "indexes"}.get(pattern[pattern.rfind(".") :], "checkpoints")


def _clock_jump(node: int, nodes: Sequence[int], said: Said) -> str:
    return f"the wall clock of {said['machine']} is {said['jump_ms'] / 1000:+g} s wrong"


def _client_pause(node: int, nodes: Sequence[int], said: Said) -> str:
    return f"the client {said['client']} is paused"


def _client_cut(node: int, nodes: Sequence[int], said: Said) -> str:
    return f"the client {said['client']} is cut off from {names_of(nodes) if nodes else 'all others'}"


def _own_words(node: int, nodes: Sequence[int], said: Said) -> str:
    """The text in the event itself, from the nemesis."""
    return str(said["text"])


def _elect(node: int, nodes: Sequence[int], said: Said) -> str:
    return "a user requests the preferred leaders"


def is_clause(event: Event) -> bool:
    """Whether `fault_text` is a whole clause."""
    return isinstance(event.fields.get("text"), str) or _clause(event) is not None


TELLERS: dict[str, Callable[[int, Sequence[int], Said], str]] = {
    "cut": _cut,
    "cut_node": _cut,
    "cut_pair": _cut_pair,
    "cut_one_way": _cut_one_way,
    "one-way": _cut_one_way,
    "half_open": _half_open,
    "partition": _partition,
    "swizzle": _swizzle,
    "clog": _clog,
    "narrow": _narrow,
    "delay": _delay,
    "loss": _loss,
    "reset": _reset,
    "reset_response": _reset_response,
    "fragment": _fragment,
    "slow_reader": _slow_reader,
    "mute": _mute,
    "cold_reads": _cold_reads,
    "hold": _hold,
    "ambush": _own_words,
    "lead_returns": _own_words,
    "group_message_held": _own_words,
    "group_message_lost": _own_words,
    "coordinator_moves": _own_words,
    "transaction_message_held": _own_words,
    "transaction_message_lost": _own_words,
    "transaction_coordinator_moves": _own_words,
    "blackout": _blackout,
    "rolling": _rolling,
    "power_many": _power_many,
    "stop_power": _stop_power,
    "crash_in_disk": _crash_in_disk,
    "crash_in_start": _crash_in_start,
    "wipe": _wipe,
    "wipe_last": _wipe_last,
    "wiped_voter": _wiped_voter,
    "disk_slow": _disk_slow,
    "disk_stall": _disk_stall,
    "disk_error": _disk_error,
    "dir_fails": _dir_fails,
    "disk_fsync": _disk_fsync,
    "disk_full": _disk_full,
    "rot": _rot,
    "misdirect": _misdirect,
    "stale_read": _stale_read,
    "clock_jump": _clock_jump,
    "client_pause": _client_pause,
    "client_cut": _client_cut,
    "elect": _elect,
    "left out: crash": _left_out("dies"),
    "left out: cut": _left_out("is cut off from all others"),
    "left out: pause": _left_out("is paused"),
}
