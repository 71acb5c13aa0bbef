"""Product code behaves the same in every process, so that a seed repeats a simulated run.

Python orders a set by the hashes of its members. The hashes of strings differ per process, and those of objects are
addresses. Code that iterates over such a set does the same things in another order in the next run, and the same seed
gives another simulation. So the code uses `dict.fromkeys` as an ordered set, or `sorted`. Membership, size and set
algebra do not depend on the order (`unordered.py` describes what is found, and how).

A process can influence behaviour in other ways too: by addresses and hashes, the times of garbage collections, random
sources with their own seed, state that outlives its node, and the time in a log line. These tests look for them; uses
of the outside world are in test_doors.py.
"""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from unordered import find

from strandline.client.cluster.cluster import Cluster
from strandline.client.cluster.connection_state import ConnectionState
from strandline.client.consumer.offset_fetcher import OffsetFetcher
from strandline.client.consumer.subscription import Subscription
from strandline.client.options import ConsumerOptions, parse_options
from strandline.protocol import apis
from strandline.protocol.messages.admin import ApiVersionsRequest, ApiVersionsResponse
from strandline.protocol.rpc import dial as dialling
from strandline.protocol.rpc.server import Server

ROOT = Path(__file__).parents[2]
ROOMS = ("protocol", "storage", "controller", "broker", "client")

SOURCES = {str(p.relative_to(ROOT)): p.read_text() for room in ROOMS for p in sorted((ROOT / room).rglob("*.py"))}
SIMULATION = {str(p.relative_to(ROOT)): p.read_text() for p in sorted((ROOT / "testing" / "simulation").rglob("*.py"))}

# -- sets -------------------------------------------------------------------------------------------------------------

ANY_ORDER: dict[tuple[str, str], str] = {
    ("broker/kafka/translations/fetch.py", "at"): "a number, an offset in a frame",
    ("client/compat/aiokafka/consumer.py", "self._reader.subscription()"): "it waits for all of them",
    ("client/compat/aiokafka/listener.py", "set(partitions)"): "aiokafka's listeners get a set",
    ("client/consumer/consumer.py", "only"): "asked for membership alone",
    ("client/sync/loop_thread.py", "tasks"): "all are cancelled, on a thread that no simulation has",
    ("client/sync/loop_thread.py", "_running"): "threads, each closed on its own",
    ("testing/simulation/scenarios/fencing.py", "new.rejected"): "members of a set again",
    ("testing/simulation/scenarios/fencing.py", "old.rejected"): "members of a set again",
    ("testing/simulation/scenarios/quorum.py", "topics(12)"): "a coroutine, no set",
    ("testing/simulation/story/picture.py", "kinds"): "it has one member",
    ("testing/simulation/story/story.py", "nodes"): "numbers, and `names_of` sorts them",
}
"""(File, expression) -> why its order does not count."""


def test_nothing_depends_on_the_order_of_a_set() -> None:
    found = [(path, line, text) for path, line, text in find(SOURCES | SIMULATION) if (path, text) not in ANY_ORDER]
    assert found == []


SHUFFLED = """
import asyncio
from typing import NamedTuple
Key = tuple[bytes, int]
LEVELS = frozenset({"a", "b"})
class Place(NamedTuple):
    topics: frozenset[str]
class Other:
    names: list[str]
class C:
    def __init__(self) -> None:
        self.names: set[str] = set()
        self.made = set()
        self.by_topic: dict[str, set[Key]] = {}
        self.numbers: set[int] = set()
        self.pairs: set[tuple[int, int]] = set()
    @property
    def all(self) -> frozenset[str]:
        return frozenset(self.names)
    def missing(self) -> set[str]:
        return self.names
def give() -> set[bytes]:
    return set()
def take(names: set[str]) -> None: ...
"""
"""The declarations that the examples may use."""


def complaints_about(code: str, parameters: str = "self, d, e, x, loop") -> list[str]:
    lines = "".join(f"        {line}\n" for line in code.splitlines())
    source = f"{SHUFFLED}\nclass D(C):\n    async def f({parameters}):\n{lines}"
    return [text for _, _, text in find({"x.py": source})]


@pytest.mark.parametrize(
    "code",
    [
        "for name in self.names: pass",
        "for name in self.made: pass",
        "async for name in self.names: pass",
        "for name in {'a', 'b'}: pass",
        "for name in {n.name for n in x}: pass",
        "for name in LEVELS: pass",
        "for name in set(x): pass",
        "for name in d.keys() - e.keys(): pass",
        "for name in d.keys() & x: pass",
        "for name in self.names | set(x): pass",
        "for key in self.by_topic['t']: pass",
        "for key in self.by_topic.get('t', ()): pass",
        "for keys in self.by_topic.values():\n    for key in keys: pass",
        "for topic, keys in self.by_topic.items():\n    list(keys)",
        "names = self.names\nfor name in names: pass",
        "names = set()\nnames |= x\nfor name in names: pass",
        "if names := self.missing():\n    list(names)",
        "for name in self.all: pass",
        "for name in self.missing(): pass",
        "for name in give(): pass",
        "for name in x.missing(): pass",
        "for name in x.names: pass",
        "names = self.names or x\nfor name in names: pass",
        "names = self.names if x else ()\nfor name in names: pass",
        "done, pending = await asyncio.wait(x)\nfor task in done: task.result()",
        "done, _ = await asyncio.wait(x)\nfirst = done.pop()",
        "for task in (await asyncio.wait(x))[1]: task.cancel()",
        "for task in list(asyncio.all_tasks()): task.cancel()",
        "self.names.pop()",
        "return [name for name in self.names]",
        "return {name: 1 for name in self.names}",
        "return (name for name in self.names)",
        "return list(self.names)",
        "return tuple(self.names)",
        "return next(iter(self.names))",
        "return ','.join(self.names)",
        "return f'{self.names}'",
        "return str(self.names)",
        "return dict.fromkeys(self.names)",
        "return [*self.names]",
        "return f(*self.names)",
        "return list(enumerate(self.names))",
        "return list(map(str, self.names))",
        "return sorted(self.names, key=len)",
        "return min(self.names, key=len)",
        "x.extend(self.names)",
        "x += self.names",
        "x.ask(self.names)",
        "x.ask(names=self.names, of=self.made)",
        "first, second = self.names",
        "yield from_here(self.names)",
        "gather(*{a(), b()})",
        "def g():\n    for name in self.names: pass",
        "g = lambda: list(self.names)",
        "names: list[str] = self.names",
        "def g() -> list[str]:\n    return self.names",
        "for pair in {(1, None)}: pass",
        "for number in {1, None}: pass",
    ],
)
def test_an_iteration_over_a_shuffled_set_is_found(code: str) -> None:
    assert complaints_about(code)


@pytest.mark.parametrize(
    "code",
    [
        "for name in sorted(self.names): pass",
        "for name in sorted(name for name in self.names if name): pass",
        "if 'a' in self.names or len(self.names) > 1 or not self.names: pass",
        "if any(name for name in self.names) or all(n for n in self.names): pass",
        "x = max(self.names), min(self.names), sum(len(n) for n in self.names)",
        "x = {name.upper() for name in self.names}",
        "x = set(self.names) | self.made",
        "if self.names <= self.made or self.names == {'a'}: pass",
        "self.names.update(self.made)",
        "self.names.difference_update(n for n in self.made)",
        "self.names.discard('a')",
        "take(self.names)",
        "Place(self.names)",
        "f(topics=self.all)",
        "await asyncio.wait(self.made)",
        "d.setdefault('a', set()).add('b')",
        "x.append(self.names)",
        "for name in dict.fromkeys(x): pass",
        "for name in d: pass",
        "for name in d.keys(): pass",
        "for name in d | e: pass",
        "for number in self.numbers: pass",
        "for pair in self.pairs: list({1, 2})",
        "for number in {n for n in self.numbers}: pass",
        "def g() -> set[str]:\n    return self.names",
        "d.pop('a')",
        "queue = [1]\nqueue.pop()",
    ],
)
def test_order_independent_uses_of_sets_are_permitted(code: str) -> None:
    assert complaints_about(code) == []


def test_fields_of_two_classes_are_distinguished() -> None:
    a = "class A:\n    names: set[str]\n"
    b = "class B:\n    names: list[str]\n    def f(self):\n        for name in self.names: pass\n"
    assert find({"a.py": a, "b.py": b}) == []
    assert find({"a.py": a, "b.py": b.replace("list[str]", "frozenset[str]")}) == [("b.py", 4, "self.names")]
    method = "class B:\n    def names(self): ...\n    def f(self):\n        call(self.names)\n"
    assert find({"a.py": a, "b.py": method}) == []


# -- addresses, hashes, finalizers, seeds -------------------------------------------------------------------------------

PECULIAR: dict[tuple[str, str], str] = {
    ("storage/log/retention.py", "id"): "the identities of segments that are alive, for membership alone",
    ("protocol/doors.py", "Random"): "seeded from the system: the door itself",
    ("client/consumer/group/heartbeat_thread.py", "Random"): "of a thread, and there is none under simulation",
}
"""(File, what it uses) -> why that does not influence what the node does."""


def peculiarities(source: str) -> Iterator[tuple[int, str]]:
    """Find uses of values that differ between processes: addresses and hashes, destructors, unseeded generators."""
    tree = ast.parse(source)
    bound = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    bound |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    for node in ast.walk(tree):
        match node:
            case ast.Name(id="id" | "hash" as name) if name not in bound:
                yield node.lineno, name
            case ast.FunctionDef(name="__del__"):
                yield node.lineno, "__del__"
            case ast.Call(func=ast.Name(id="Random") | ast.Attribute(attr="Random"), args=arguments):
                if not (len(arguments) == 1 and isinstance(arguments[0], ast.Constant)):
                    yield node.lineno, "Random"
            case ast.Attribute(attr="__hash__" | "__weakref__" as name):
                yield node.lineno, name


def test_behaviour_is_equal_in_every_process() -> None:
    found = [(path, line, what) for path, source in SOURCES.items() for line, what in peculiarities(source)]
    assert [entry for entry in found if (entry[0], entry[2]) not in PECULIAR] == []
    assert set(PECULIAR) <= {(path, what) for path, _, what in found}


@pytest.mark.parametrize(
    "source",
    [
        "key = id(x)",
        "xs.sort(key=id)",
        "bucket = hash(name) % 8",
        "bucket = name.__hash__() % 8",
        "class A:\n    def __del__(self): ...",
        "from random import Random\nr = Random()",
        "import random\nr = random.Random(seed)",
    ],
)
def test_process_dependent_code_is_found(source: str) -> None:
    assert list(peculiarities(source))


def test_similar_names_of_ours_are_permitted() -> None:
    assert list(peculiarities("def f(id, random):\n    return id, x.id, random.random(), Random(0)")) == []


# -- state that outlives a node ---------------------------------------------------------------------------------------

SHARED: dict[tuple[str, str], str] = {
    ("broker/kafka/call.py", "@cache"): "the decoder of a message class, made at its first use",
    ("broker/kafka/schemas.py", "@cache"): "a module of kio, imported at its first use",
    ("client/compat/aiokafka/errors.py", "cls.description"): "set once, when the class is defined",
    ("client/compat/aiokafka/errors.py", "cls.invalid_metadata"): "set once, when the class is defined",
    ("client/compat/aiokafka/errors.py", "cls.message"): "set once, when the class is defined",
    ("client/compat/aiokafka/errors.py", "cls.retriable"): "set once, when the class is defined",
    ("client/compat/aiokafka/producer.py", "_numbers"): "numbers in the names of clients, as aiokafka has them",
    ("client/sync/generate.py", "@cache"): "the imports of a module, remembered by the tool that writes calls.py",
    ("client/consumer/arrow.py", "@cache"): "pyarrow's types, made at their first use",
    ("client/consumer/columns.py", "@lru_cache"): "a function of the length alone, remembered",
    ("client/producer/partitioner.py", "@lru_cache"): "a function of the key alone, remembered",
    ("protocol/frames.py", "__missing__"): "the decoder of an API, made at its first use",
    ("protocol/records/check.py", "@lru_cache"): "a function of bytes and index alone, remembered",
    ("protocol/records/check.py", "__missing__"): "a function of two bytes, remembered",
    ("protocol/records/reader.py", "@lru_cache"): "a function of the lengths alone, remembered",
    ("protocol/records/reader.py", "__missing__"): "a function of two bytes, remembered",
    ("protocol/rpc/request_metrics.py", "__missing__"): "in the measures of one server",
    ("protocol/rpc/request_metrics.py", "@cache"): "a function of the message class alone, remembered",
    ("protocol/records/builder.py", "_prefixes"): "a function of length and index, remembered",
    ("protocol/records/builder.py", "__missing__"): "a function of the length, remembered",
    ("protocol/rpc/connection.py", "_bad_servers"): "by event loop, so each node has its own",
    ("protocol/rpc/connection.py", "_scratches"): "by event loop, so each node has its own; nothing in it outlives a read",
    ("protocol/rpc/dial.py", "_lookups"): "by event loop, so each node has its own",
    ("protocol/security/tls.py", "_client_contexts"): "what the files of the settings contain, remembered until they change; "
    "a node that starts reads them itself",
    ("storage/memory/memory_files.py", "@lru_cache"): "a function of the path alone, remembered",
}
"""(File, what is shared by all nodes of a process) -> why no node and no later run can tell."""

CONTAINERS = {
    "dict",
    "list",
    "set",
    "deque",
    "defaultdict",
    "Counter",
    "OrderedDict",
    "count",
    "WeakKeyDictionary",
    "WeakValueDictionary",
}
MUTATORS = {
    "append", "appendleft", "extend", "insert", "add", "update", "setdefault", "pop", "popleft", "popitem", "clear", "remove",
    "discard", "__setitem__",
}  # fmt: skip


def shared_state(source: str) -> Iterator[str]:
    """Find state that functions of a module store in the module. A simulated world has many nodes in one process, and a sweep
    many worlds, and each must start with the same state."""
    tree = ast.parse(source)
    held = set()
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) | ast.AnnAssign(target=ast.Name(id=name), value=value):
                is_container = isinstance(value, (ast.Dict, ast.List, ast.Set, ast.DictComp, ast.ListComp, ast.SetComp))
                if is_container or (isinstance(value, ast.Call) and ast.unparse(value.func).rsplit(".", 1)[-1] in CONTAINERS):
                    held.add(name)
    classes = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    for function in ast.walk(tree):
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if function.name == "__missing__":
                yield "__missing__"
            for decorator in function.decorator_list:
                name = ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator).rsplit(".", 1)[-1]
                if name in ("lru_cache", "cache"):
                    yield f"@{name}"
            for node in ast.walk(function):
                yield from _left_behind(node, held, classes | {"cls"})


def _left_behind(node: ast.AST, held: set[str], classes: set[str]) -> Iterator[str]:
    match node:
        case ast.Global(names=names):
            yield from names
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method)) if name in held and method in MUTATORS:
            yield name
        case ast.Call(func=ast.Name(id="next"), args=[ast.Name(id=name), *_]) if name in held:
            yield name
        case ast.Subscript(value=ast.Name(id=name), ctx=ast.Store() | ast.Del()) if name in held:
            yield name
        case ast.Attribute(value=ast.Name(id=name), ctx=ast.Store() | ast.Del()) if name in classes:
            yield f"{name}.{node.attr}"


def test_no_module_keeps_state_between_nodes() -> None:
    found = {(path, what) for path, source in SOURCES.items() for what in shared_state(source)}
    assert sorted(found - set(SHARED)) == []
    assert sorted(set(SHARED) - found) == []


@pytest.mark.parametrize(
    "source",
    [
        "n = 0\ndef f():\n    global n\n    n += 1",
        "seen = {}\ndef f(x):\n    seen[x] = 1",
        "seen: dict[int, int] = {}\ndef f(x):\n    del seen[x]",
        "seen = set()\ndef f(x):\n    seen.add(x)",
        "seen = []\ndef f(x):\n    seen.append(x)",
        "import itertools\nids = itertools.count()\ndef f():\n    return next(ids)",
        "class A:\n    last = 0\n    def f(self):\n        A.last += 1",
        "class A:\n    @classmethod\n    def f(cls):\n        cls.last = 1",
        "from functools import cache\n@cache\ndef f(x): ...",
        "import functools\n@functools.lru_cache(maxsize=1)\ndef f(x): ...",
        "class T(dict):\n    def __missing__(self, key): ...",
    ],
)
def test_module_state_is_found(source: str) -> None:
    assert list(shared_state(source))


def test_constant_tables_are_permitted() -> None:
    assert list(shared_state("T = {1: 2}\ndef f(x):\n    mine = {}\n    mine[1] = T[x]\n    x.T = 1\n    return T.get(x)")) == []


# -- log lines --------------------------------------------------------------------------------------------------------


def lines_whose_result_is_used(source: str) -> list[int]:
    """Find log calls whose result is used, because it might contain a time or another part of the line."""
    tree = ast.parse(source)
    statements = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    of_logs = [call for call in calls if ast.unparse(call.func).split(".")[-2] in ("log", "logger", "_log")]
    levels = ("debug", "info", "warning", "error", "critical", "exception", "log", "msg", "bind")
    return [call.lineno for call in of_logs if ast.unparse(call.func).split(".")[-1] in levels and id(call) not in statements]


def test_no_result_of_a_log_call_is_used() -> None:
    """The timestamp of a log line is the system's time, which must not influence a node."""
    assert {path: lines for path, source in SOURCES.items() if (lines := lines_whose_result_is_used(source))} == {}
    assert lines_whose_result_is_used("at = log.info('x.y')\nlog.info('x.y')\nlog = log.bind(a=1)") == [1, 3]


# -- the places where many tasks end at once ----------------------------------------------------------------------------


def sleeper(name: int, told: list[int]) -> Callable[[], Any]:
    async def sleep() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            told.append(name)

    return sleep


async def test_the_first_of_simultaneous_addresses_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialling, "NEXT_ADDRESS_S", 0.0)
    answer = asyncio.get_running_loop().create_future()

    async def attempt(make: object, address: str, port: int, host: str, tls: object) -> Any:
        await answer
        return address

    async def resolve(host: str) -> list[str]:
        return [f"10.0.0.{n}" for n in range(20)]

    monkeypatch.setattr(dialling, "_attempt", attempt)
    monkeypatch.setattr(dialling, "resolve", resolve)
    dropped: list[str] = []
    dialled = asyncio.ensure_future(dialling.dial(lambda: None, "name", 1, drop=dropped.append))  # type: ignore[arg-type, return-value]
    for _ in range(60):
        await asyncio.sleep(0)
    answer.set_result(None)
    assert await dialled == "10.0.0.0"
    await asyncio.sleep(0)
    assert dropped == [f"10.0.0.{n}" for n in range(1, 20)]


async def test_a_stopping_server_ends_handlers_in_order() -> None:
    server = Server({}, role="broker", node_id=1, cluster_id="c", incarnation_id=bytes(16))
    await server.start("127.0.0.1", 0)
    told: list[int] = []
    for n in range(20):
        server.run_coroutine(None, sleeper(n, told)())  # type: ignore[arg-type]
    await asyncio.sleep(0)
    await server.stop()
    await asyncio.sleep(0)
    assert told == list(range(20))


def options() -> ConsumerOptions:
    return parse_options(ConsumerOptions, {"bootstrap_servers": ",".join(f"10.0.0.{n}:9092" for n in range(1, 21))})


async def test_a_stopping_consumer_ends_requests_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[int] = []

    async def ask(self: OffsetFetcher, leader_id: int, states: object) -> None:
        await sleeper(leader_id, told)()

    monkeypatch.setattr(OffsetFetcher, "_ask", ask)
    positions = OffsetFetcher(
        options(), Cluster(options(), Random(1)), Subscription(None), lambda state: None, lambda: None, lambda state: None
    )
    positions._questions = {leader_id: {} for leader_id in range(20)}
    positions._ask_all()
    await asyncio.sleep(0)
    await positions.close()
    assert told == list(range(20))


async def test_the_first_of_simultaneous_brokers_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strandline.client.cluster.any_broker.HEDGE_AFTER_MS", 0)
    answer = asyncio.get_running_loop().create_future()
    asked: list[ConnectionState] = []

    async def request(self: ConnectionState, api_key: int, body: object, timeout_ms: float) -> ApiVersionsResponse:
        asked.append(self)
        await answer
        return ApiVersionsResponse(0, [], "c", len(asked), "broker", bytes(16))

    monkeypatch.setattr(ConnectionState, "request", request)
    cluster = Cluster(options(), Random(1))
    first = asyncio.ensure_future(cluster.any_broker._first_answer(apis.API_VERSIONS, ApiVersionsRequest(), 10_000))
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(asked) == 20
    answer.set_result(None)
    state, _ = await first
    assert state is asked[0]
