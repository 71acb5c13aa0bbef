"""Finds cycles in a graph of dependencies: strongly connected components by Tarjan's algorithm, and in each a shortest cycle.

Each edge has a kind, because the kinds of a cycle's edges decide its name. The search does not recurse, because a history has
more transactions than Python's stack has frames."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator
from itertools import islice
from typing import NamedTuple

STARTS_MAX = 200
"""Number of edges for which a shortest cycle is searched: each search may visit the whole component."""


class Edge(NamedTuple):
    """`after` depends on `before`. `why` says on which values, for the report."""

    before: int
    after: int
    kind: str
    why: str


class Graph:
    """Nodes are numbers. Of several edges of one kind between the same nodes only the first is kept."""

    def __init__(self) -> None:
        self._edges: dict[int, dict[tuple[int, str], Edge]] = {}

    def add(self, edge: Edge) -> None:
        if edge.before != edge.after:
            self._edges.setdefault(edge.before, {}).setdefault((edge.after, edge.kind), edge)
            self._edges.setdefault(edge.after, {})

    def edges_of(self, node: int, kinds: Container[str]) -> Iterator[Edge]:
        return (edge for edge in self._edges.get(node, {}).values() if edge.kind in kinds)

    def components(self, kinds: Container[str]) -> list[list[int]]:
        """The strongly connected components of more than one node, if only edges of these kinds exist. Each is sorted."""
        return _Tarjan(self._edges, lambda node: (edge.after for edge in self.edges_of(node, kinds))).found

    def cycle(self, component: Iterable[int], kinds: Container[str], through: Container[str]) -> list[Edge]:
        """A cycle in this component with at least one edge of the kinds `through`; empty if there is none. It is a shortest one
        if the component has at most STARTS_MAX such edges."""
        members = frozenset(component)
        starts = (edge for node in sorted(members) for edge in self.edges_of(node, through) if edge.after in members)
        best: list[Edge] = []
        for edge in islice(starts, STARTS_MAX):
            path = self._path(edge.after, edge.before, members, kinds, len(best) - 1)
            if path is not None:
                best = [edge, *path]
        return best

    def _path(self, first: int, last: int, members: frozenset[int], kinds: Container[str], below: int) -> list[Edge] | None:
        """A shortest path with fewer than `below` edges (negative: of any length)."""
        came: dict[int, Edge | None] = {first: None}
        waiting = deque([(first, 0)])
        while waiting:
            node, length = waiting.popleft()
            if node == last:
                return _back(came, last)
            if 0 <= below <= length + 1:
                continue
            for edge in self.edges_of(node, kinds):
                if edge.after in members and edge.after not in came:
                    came[edge.after] = edge
                    waiting.append((edge.after, length + 1))
        return None


def _back(came: dict[int, Edge | None], last: int) -> list[Edge]:
    path: list[Edge] = []
    edge = came[last]
    while edge is not None:
        path.append(edge)
        edge = came[edge.before]
    return path[::-1]


class _Tarjan:
    """Tarjan's search with its own stack: (node, the successors that are still to be visited)."""

    def __init__(self, nodes: Iterable[int], successors: Callable[[int], Iterator[int]]) -> None:
        self.found: list[list[int]] = []
        self._successors = successors
        self._index: dict[int, int] = {}
        self._low: dict[int, int] = {}
        self._open: dict[int, None] = {}
        """Nodes that have no component yet, in the order of their first visit."""
        for node in nodes:
            if node not in self._index:
                self._search(node)

    def _search(self, root: int) -> None:
        stack = [self._enter(root)]
        while stack:
            node, rest = stack[-1]
            following = next(rest, None)
            if following is None:
                stack.pop()
                self._leave(node)
                if stack:
                    above = stack[-1][0]
                    self._low[above] = min(self._low[above], self._low[node])
            elif following not in self._index:
                stack.append(self._enter(following))
            elif following in self._open:
                self._low[node] = min(self._low[node], self._index[following])

    def _enter(self, node: int) -> tuple[int, Iterator[int]]:
        self._index[node] = self._low[node] = len(self._index)
        self._open[node] = None
        return node, self._successors(node)

    def _leave(self, node: int) -> None:
        if self._low[node] < self._index[node]:
            return
        component = []
        while True:
            member, _ = self._open.popitem()
            component.append(member)
            if member == node:
                break
        if len(component) > 1:
            self.found.append(sorted(component))
