"""The network between the nodes of one process: which links are cut, and which messages are lost or delayed.

Nodes communicate over real sockets of the loopback interface. Both ends of a connection between nodes, and the brokers' ends
of the clients' connections, are `Wire`s (`wires.py`), which ask this network what may pass. Three kinds of faults:

- **A link is cut** (`cut`): nothing arrives in either direction and nothing is refused, as when a cable is pulled. Bytes that
  were sent meanwhile stay in the sockets and arrive when the link is healed, as TCP would retransmit them.
- **A message is lost** (`Rule` of kind DROP): a byte stream cannot continue without a message, so the connection breaks
  instead: before the request is read, or after it was handled and before its response is sent. If `silently`, the connection
  stays open and the sender of the request waits for a response until its own timeout.
- **A message is delayed** (DELAY), and with it everything behind it on its connection.

A node is identified by its id, a client by `CLIENT`. The ports of an accepted connection show which node is at its other end:
each node registers the local and the remote port of the connections that it opens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from types import TracebackType
from typing import Protocol, Self

from strandline.protocol.apis import APIS
from strandline.protocol.errors import UsageError

CLIENT = 0
"""Stands for every process that is not a node of the cluster."""
REQUEST, RESPONSE = "request", "response"
DROP, DELAY = "drop", "delay"


@dataclass(slots=True, eq=False)
class Rule:
    """A fault of `Cluster.drop` or `Cluster.delay` for certain messages, active until `stop()`.

    As a context manager it stops at the end of the block, and raises AssertionError if it met no message (unless `may_miss`,
    or `p` is below 1).
    """

    kind: str
    api_key: int | None
    """None: every API."""
    where: str
    at: int | None
    """The node that receives the request; None: any."""
    by: int | None
    """The sender of the request: a node, or CLIENT; None: any."""
    p: float
    times: int | None
    """Maximum number of messages; None: no limit."""
    silently: bool
    delay_s: float
    random: Random
    on_stop: Callable[[Rule], None]
    may_miss: bool = False
    """Permits a `with` block in which the rule met no message."""
    hits: int = field(default=0, init=False)
    """Number of messages that it has met."""

    def takes(self, where: str, api_key: int, at: int, by: int) -> bool:
        """Whether the rule applies to this message; if so, count it. Draws a random number if `p` is below 1."""
        if (
            where != self.where
            or (self.api_key is not None and api_key != self.api_key)
            or (self.at is not None and at != self.at)
            or (self.by is not None and by != self.by)
            or (self.times is not None and self.hits >= self.times)
            or (self.p < 1 and self.random.random() >= self.p)
        ):
            return False
        self.hits += 1
        return True

    def stop(self) -> None:
        """End the fault. Messages that it delays arrive at their time."""
        self.on_stop(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()
        if e is None and not self.hits and self.p == 1 and not self.may_miss:
            raise AssertionError(f"this fault met no message: {self}; if that is intended, pass may_miss=True")

    @property
    def name(self) -> str:
        """A description: the kind of fault and the messages that it applies to."""
        api = "every" if self.api_key is None else APIS[self.api_key].name
        what = f"{self.delay_s * 1000:g} ms" if self.kind == DELAY else f"p={self.p:g}"
        place = f" at {self.at}" if self.at is not None else ""
        asker = "" if self.by is None else " of clients" if self.by == CLIENT else f" of {self.by}"
        return f"{self.kind} {api} {self.where}{asker}{place}, {what}"

    def __str__(self) -> str:
        return f"{self.name}, {self.hits} so far"


class ConnectionEnd(Protocol):
    """One node's end of a connection, as the network sees it: a `Wire` (`wires.py`)."""

    local_port: int
    remote_port: int

    @property
    def node(self) -> int: ...

    @property
    def is_dialled(self) -> bool:
        """The node opened the connection; otherwise it accepted it."""
        ...

    def update(self) -> None:
        """Re-check whether bytes may pass."""
        ...


class Network:
    def __init__(self, random: Random) -> None:
        self.rules: list[Rule] = []
        self._random = random
        self._cuts: dict[frozenset[int], None] = {}
        self._ends: dict[ConnectionEnd, None] = {}
        self._node_at: dict[int, int] = {}
        """Listening port -> node."""
        self._dialled: dict[tuple[int, int], int] = {}
        """(local port, remote port) of an open connection -> node that opened it. Connections may share a local port."""
        self._quiet: asyncio.Future[None] | None = None
        """Done when the last connection is closed; None: `until_quiet` does not wait."""
        self._waiting: list[tuple[int, int, Callable[[], None]]] = []
        """Connection attempts over cut links: the two nodes, and the callback for when the link is healed."""

    # -- faults -------------------------------------------------------------------------------------------------------

    def cut(self, pairs: Iterable[tuple[int, int]]) -> None:
        for pair in pairs:
            self._cuts[frozenset(pair)] = None
        self._update()

    def mend(self) -> None:
        """Restore all links and end all rules."""
        self._cuts.clear()
        self.rules.clear()
        self._update()

    def add_rule(
        self,
        kind: str,
        api: str | None,
        *,
        where: str,
        at: int | None,
        by: int | None,
        p: float = 1.0,
        times: int | None = None,
        silently: bool = False,
        delay_ms: float = 0,
        may_miss: bool = False,
    ) -> Rule:
        """Add a rule that drops or delays messages, and return it. `api`: name of an API, None for every API. `at`: only requests
        to this node; `by`: only requests from this node. UsageError: an unknown API, or a value of `where`, `p` or `times` that
        is not allowed."""
        if where not in (REQUEST, RESPONSE):
            raise UsageError(f'where is "request" or "response", not {where!r}')
        if not 0 < p <= 1:
            raise UsageError(f"p is a probability, above 0 and at most 1, not {p!r}")
        if times is not None and times < 1:
            raise UsageError(f"times is at least 1, not {times!r}")
        shape = (where, at, by, p, times, silently, delay_ms / 1000)
        rule = Rule(kind, api_key(api), *shape, self._random, self._remove, may_miss)
        self.rules.append(rule)
        return rule

    def _remove(self, rule: Rule) -> None:
        if rule in self.rules:
            self.rules.remove(rule)

    def is_cut(self, one: int, other: int) -> bool:
        return bool(self._cuts) and frozenset((one, other)) in self._cuts

    @property
    def cuts(self) -> list[str]:
        return [" - ".join("clients" if n == CLIENT else str(n) for n in sorted(pair)) for pair in self._cuts]

    def _update(self) -> None:
        """Re-check every connection and connection attempt after a change of the links."""
        for end in list(self._ends):
            end.update()
        waiting, self._waiting = self._waiting, []
        for one, other, go in waiting:
            if self.is_cut(one, other):
                self._waiting.append((one, other, go))
            else:
                go()

    # -- connections --------------------------------------------------------------------------------------------------

    def add(self, end: ConnectionEnd) -> None:
        self._ends[end] = None
        if end.is_dialled:
            ports = end.local_port, end.remote_port
            self._dialled[ports] = end.node
            for other in [e for e in self._ends if (e.remote_port, e.local_port) == ports]:
                other.update()  # It was accepted before the network knew which node had opened it.

    def remove(self, end: ConnectionEnd) -> None:
        self._ends.pop(end, None)
        if end.is_dialled:
            self._dialled.pop((end.local_port, end.remote_port), None)
        if not self._ends and self._quiet is not None and not self._quiet.done():
            self._quiet.set_result(None)

    async def until_quiet(self, within_s: float) -> None:
        """Wait until every connection is closed, at most `within_s` seconds. No node may open new connections meanwhile."""
        if self._ends:
            self._quiet = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._quiet], timeout=within_s)

    @property
    def ends(self) -> list[ConnectionEnd]:
        """The ends of all open connections."""
        return list(self._ends)

    def dialler(self, from_port: int, to_port: int) -> int:
        """The node that opened the connection between these ports, or CLIENT."""
        return self._dialled.get((from_port, to_port), CLIENT)

    def listener(self, port: int) -> int:
        """The node that listens at this port, or CLIENT."""
        return self._node_at.get(port, CLIENT)

    def note_listener(self, port: int, node: int) -> None:
        self._node_at[port] = node

    def when_open(self, one: int, other: int, go: Callable[[], None]) -> None:
        """Call `go` now, or when the link between the two is healed."""
        if self.is_cut(one, other):
            self._waiting.append((one, other, go))
        else:
            go()


def api_key(name: str | None) -> int | None:
    """The key of the API with this name; None for None. UsageError: there is no such API."""
    if name is None:
        return None
    for api in APIS.values():
        if api.name == name:
            return api.key
    raise UsageError(f"there is no API {name!r}; there are {', '.join(api.name for api in APIS.values())}")
