"""All contact with the outside world goes through four doors: the loop's time, the loop's network, `storage/files.py`, and a
random source that is passed in. The simulation depends on this, and so does every test from a seed.

The check has a list of harmless modules and reports all others, so that an unknown module counts as a way past the doors until
it was reviewed. `DOORS` lists what a file may use in addition, with the reason. An unused entry is reported too.
"""

from __future__ import annotations

import ast
import asyncio
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random

import pytest

from strandline.client.admin.admin import Admin
from strandline.client.consumer.consumer import Consumer
from strandline.client.producer.producer import Producer
from strandline.protocol.doors import Doors
from strandline.protocol.rpc import dial, resolver

ROOT = Path(__file__).parents[2]
ROOMS = ("protocol", "storage", "controller", "broker", "client")

HARMLESS = frozenset({
    "__future__", "abc", "array", "base64", "binascii", "bisect", "collections", "contextlib", "cramjam", "crc32c", "dataclasses",
    "difflib", "enum", "errno", "fnmatch", "functools", "hashlib", "_md5", "heapq", "inspect", "ipaddress", "itertools", "json",
    "msgspec", "operator.index", "re", "re2", "struct", "textwrap", "tomllib", "types", "typing", "zlib",
    *(f"strandline.{room}" for room in ROOMS),
    # Log lines are written and never read; test_determinism.py checks that no result of a log call is used.
    "structlog", "logging",
    # Constants, the names of errors, and the exception that is being handled.
    "os.strerror", "sys.exception", "sys.byteorder", "sys.platform", "sys.version_info",
    # Only the class: the code that creates a generator must pass a seed (test_determinism.py).
    "random.Random",
    # The parts of asyncio that use the running loop alone, in a deterministic order. Not here: functions that start threads or
    # processes, open sockets, create loops, or iterate over a set of tasks (`TaskGroup`, `all_tasks`, `as_completed`).
    "asyncio.AbstractEventLoop", "asyncio.BaseProtocol", "asyncio.BaseTransport", "asyncio.BufferedProtocol",
    "asyncio.CancelledError", "asyncio.Event", "asyncio.FIRST_COMPLETED", "asyncio.Future", "asyncio.Handle",
    "asyncio.InvalidStateError", "asyncio.Lock", "asyncio.Protocol", "asyncio.Server", "asyncio.Task", "asyncio.TimerHandle",
    "asyncio.Transport", "asyncio.current_task", "asyncio.ensure_future", "asyncio.gather", "asyncio.get_running_loop",
    "asyncio.shield", "asyncio.sleep", "asyncio.timeout", "asyncio.timeout_at", "asyncio.wait", "asyncio.wait_for",
})  # fmt: skip
"""Modules, and names of modules, that touch neither the world nor the clock nor chance."""

BUILTINS = frozenset({"open", "input", "print", "exec", "eval", "compile", "__import__", "breakpoint"})
"""Builtins of which none is harmless."""

LOOP = frozenset({
    "run_in_executor", "set_default_executor", "getaddrinfo", "getnameinfo", "call_soon_threadsafe", "run_until_complete",
    "run_forever", "create_connection", "create_server", "create_unix_connection", "create_unix_server",
    "create_datagram_endpoint", "connect_accepted_socket", "connect_read_pipe", "connect_write_pipe", "subprocess_exec",
    "subprocess_shell", "sendfile", "add_signal_handler", "add_reader", "add_writer", "sock_connect", "sock_accept", "sock_recv",
    "sock_recv_into", "sock_sendall", "start_tls",
})  # fmt: skip
"""Methods of a loop that reach the outside world. They are found by name, on any object."""

ANYTHING = "*"
BLOCKING = "what may block for long goes to a thread, and comes back to the loop; under simulation it is one later event"

DOORS: Mapping[str, Mapping[str, str]] = {
    "protocol/doors.py": {
        "time.time_ns": "the wall clock that is handed to everybody else",
        "time.perf_counter": "the stopwatch: for measurements, on which nothing that is decided rests",
        "secrets.randbits": "the seed of a production process",
        "secrets.token_bytes": "nonces, salts and keys; a simulation hands in a seeded generator",
    },
    "protocol/rpc/resolver.py": {
        "threading.Thread": "a look-up that hangs occupies a thread of its own",
        "socket.getaddrinfo": "the system's resolver",
        "socket.SOCK_STREAM": "asks it for addresses to connect to",
        ".call_soon_threadsafe": "the answer comes back to the loop",
    },
    "protocol/rpc/dial.py": {
        ".create_connection": "the door to the network, outwards",
        "socket.gaierror": "what the resolver says when there is no such name",
        "socket.EAI_NONAME": "the same, as a number",
        "weakref.WeakKeyDictionary": "the look-ups of a loop go with it; nobody walks through them",
        "ssl.SSLContext": "the TLS of a connection; the network of a simulation has none",
    },
    "protocol/rpc/login.py": {
        "ssl.SSLContext": "the TLS of a connection; the network of a simulation has none",
        "ssl.SSLError": "an error to describe",
    },
    "protocol/rpc/sasl_door.py": {
        ".run_in_executor": BLOCKING,
        "concurrent.futures.ThreadPoolExecutor": "threads for passwords and tokens; a simulation's loop ignores it",
    },
    "protocol/rpc/tls_door.py": {
        ".start_tls": "the TLS of an accepted connection; the network of a simulation has none",
        "ssl.SSLObject": "has the certificate of the peer",
        "ssl.SSLError": "an error to describe",
    },
    "protocol/security/handshakes.py": {"ssl": "the TLS of an accepted connection, between two buffers in memory"},
    "protocol/security/tls.py": {
        "ssl": "contexts, which read certificates; a simulation makes none",
        "cryptography": "parses certificates",
        "os.stat": "whether a certificate has changed",
    },
    "protocol/security/jwks.py": {
        "open": "the keys of tokens; a node of a simulation accepts none",
        "urllib": "the same, from a configured URL",
        "http": "the errors of these requests",
        "threading.Lock": "tokens are checked in threads",
        "jwt": "parses keys",
    },
    "protocol/security/oauthbearer.py": {"jwt": "checks signatures; the clock is handed in"},
    "protocol/security/scram.py": {
        "hmac": "computes, and compares in constant time",
        "scramp": "computes; the nonces are handed in",
    },
    "protocol/security/principal_mapping.py": {"cryptography.x509": "parses certificates"},
    "protocol/rpc/connection.py": {
        "weakref.WeakKeyDictionary": "what was said of bad servers goes with its loop; nobody walks through it",
        "ssl.SSLError": "the class of an error, to recognise it",
    },
    "protocol/rpc/server.py": {".create_server": "the door to the network, inwards"},
    "protocol/rpc/sockets.py": {
        "socket": "the names of options, set on the socket of a transport that has one; and the resolver's error, to describe it",
        "resource": "how many connections a server may take: a bound far above what a simulation opens",
    },
    "protocol/security/client_security.py": {"ssl.SSLContext": "the class of a context that a program hands in"},
    "protocol/security/client_properties.py": {
        "open": "a client's properties, certificates and token; a node of a simulation has none",
        "os.path": "the files that a properties file names are relative to its folder",
        "os.stat": "whether others may read a file with a secret",
    },
    "client/consumer/group/heartbeat_thread.py": {
        "threading.Thread": "heartbeats go on while the program blocks its loop; under simulation there is no thread",
        "asyncio.new_event_loop": "the loop of that thread",
        ".run_until_complete": "the same",
        ".call_soon_threadsafe": "the mailboxes of both loops",
        ".add_reader": "whether the loop is simulated; it is looked at, and not called",
    },
    "client/consumer/run/handlers.py": {
        "concurrent.futures.ThreadPoolExecutor": "a plain handler may block; a simulation's loop ignores it",
        ".run_in_executor": BLOCKING,
    },
    "client/consumer/run/run.py": {".add_signal_handler": "the program says which signals end its run"},
    "client/home.py": {"threading.get_ident": "which thread a client was started in; it is compared, and nothing else"},
    "client/type_variables.py": {"typing_extensions.TypeVar": "for type checkers only: it is not imported when a program runs"},
    "client/code_reference.py": {"sys.stdout": "a page of the documents is written by running it; no client imports it"},
    "client/sync/loop_thread.py": {
        "threading.Thread": "the loop of a client without asyncio runs on it; a simulation has no such clients",
        "threading.get_ident": "a call on that thread would wait for itself",
        "uvloop": "the loop of that thread",
        "asyncio.run_coroutine_threadsafe": "calls come in from other threads",
        "asyncio.set_event_loop": "the thread has its loop",
        "asyncio.all_tasks": "when the thread ends, its tasks are cancelled",
        ".call_soon_threadsafe": "calls come in from other threads",
        ".run_forever": "the thread runs its loop",
        ".run_until_complete": "the same, for the tasks that are cancelled",
        "concurrent.futures": "what a caller waits for",
        "os.register_at_fork": "a copy in a forked process is marked",
        "atexit": "loops end before the interpreter does",
        "weakref": "the threads that are alive; all of them are marked or closed",
    },
    "client/compat/aiokafka/options.py": {"warnings": "of options that aiokafka has deprecated"},
    "client/errors.py": {
        "ssl.SSLCertVerificationError": "the class of an error, to recognise it",
        "ssl.SSLError": "the same",
    },
    "client/options.py": {"ssl.SSLContext": "the class of a context that a program hands in"},
    "client/compat/aiokafka/helpers.py": {"ssl": "a context from the files that the program names"},
    "client/compat/faststream/broker.py": {
        "faststream": "the class that is derived from; only a program that uses FastStream imports this",
        "aiokafka": "the class of an option's default, to recognise it",
    },
    "client/compat/faststream/consumer.py": {
        "aiokafka": "the classes of the errors that FastStream catches, and of the listeners that it hands over",
    },
    "client/sync/bridge.py": {"asyncio.run_coroutine_threadsafe": "`stop` waits for the thread of a client without asyncio"},
    "client/sync/receipts.py": {"asyncio.run_coroutine_threadsafe": "`result` waits for the thread of a client without asyncio"},
    "client/sync/mailbox.py": {
        "threading.Lock": "senders of a producer without asyncio are threads",
        "threading.Condition": "they wait for room",
        "time.monotonic": "how long they have waited",
    },
    "client/sync/consumer.py": {
        "threading.Lock": "one thread at a time may call a consumer without asyncio",
        "threading.current_thread": "its name, for the error of the second one",
    },
    "client/sync/callbacks.py": {
        "threading.Thread": "callbacks of a consumer without asyncio run on it",
        "threading.get_ident": "whether a caller is a callback",
        "threading.ExceptHookArgs": "errors of callbacks are reported as those of any thread",
        "threading.excepthook": "the same",
        "queue.SimpleQueue": "the callbacks that are due",
        ".call_soon_threadsafe": "the outcome comes back to the loop",
    },
    "client/table/snapshot_files.py": {ANYTHING: "the door to the disk of a table's snapshots"},
    "client/table/snapshots.py": {".run_in_executor": BLOCKING},
    "client/sync/generate.py": {
        "ast": "a source file is written by running it; no client imports it",
        "sys.modules": "the same",
        "sys.stdout": "the same",
    },
    "client/reference.py": {"sys.stdout": "a page of the documents is written by running it; no client imports it"},
    "protocol/reference.py": {"sys.stdout": "a page of the documents is written by running it; no node imports it"},
    "broker/kafka/schemas.py": {
        "kio.index": "the schemas of Kafka's messages; nothing else of it is used",
        "sys.modules": "keeps kio from importing hypothesis",
        "datetime": "the types of defaults in the schemas; no clock",
        "uuid.UUID": "the same",
    },
    "broker/kafka/translations/consumer_groups.py": {
        "uuid.UUID": "an id in text",
        "uuid.uuid5": "a hash of the names that are handed in",
    },
    "broker/kafka/reference.py": {"sys.stdout": "a page of the documents is written by running it; no node imports it"},
    "storage/files.py": {ANYTHING: "the door to the disk"},
    "storage/directory/claim.py": {"os.geteuid": "for the sentence that refuses somebody else's directory"},
    "broker/disk_work.py": {
        ".run_in_executor": BLOCKING,
        "concurrent.futures.ThreadPoolExecutor": "names the threads for one kind of work; a simulation's loop ignores it",
    },
    "broker/log_manager_tasks.py": {".run_in_executor": BLOCKING},
    "client/producer/producer.py": {
        "_thread.get_ident": "refuses calls of other threads; compared, and never kept beyond an iteration"
    },
    "client/consumer/arrow.py": {"pyarrow": "turns buffers into rows, for who asks; nothing of them comes back"},
}
"""File -> what it may use beside the harmless (`.name`: a method) -> why."""


def sources() -> list[str]:
    return sorted(str(p.relative_to(ROOT)) for room in ROOMS for p in (ROOT / room).rglob("*.py"))


def uses(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield each use with its line: dotted names of modules, with aliases resolved; methods of a loop, as `.method`; and
    builtins that reach the outside world."""
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                aliases[name.asname or name.name.split(".")[0]] = name.name if name.asname else name.name.split(".")[0]
                if "." in name.name:
                    yield node.lineno, name.name
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            for name in node.names:
                aliases[name.asname or name.name] = f"{module}.{name.name}"
                yield node.lineno, f"{module}.{name.name}"
    used, left = set(), {_dotted(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Attribute, ast.Name)):
            continue
        dotted = _dotted(node)
        first, dot, rest = dotted.partition(".")
        # A name that was not imported is a variable, and `random.choice` of a `Random` is as it should be.
        if first in aliases:
            used.add(first)
            if dot or first not in left:
                yield node.lineno, aliases[first] + dot + rest
        elif dotted in BUILTINS:
            yield node.lineno, dotted
        elif isinstance(node, ast.Attribute) and node.attr in LOOP:
            yield node.lineno, "." + node.attr
    for name in aliases.keys() - used:  # Imported, and then fetched by some other way.
        yield 0, aliases[name]


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (left := _dotted(node.value)):
        return f"{left}.{node.attr}"
    return ""


def covers(name: str, allowed: str) -> bool:
    """Return whether a table's entry names this name, or a module that contains it."""
    return allowed == ANYTHING or name == allowed or name.startswith(allowed + ".")


def is_harmless(name: str) -> bool:
    return any(covers(name, harmless) for harmless in HARMLESS)


def ways_out(source: str) -> list[tuple[int, str]]:
    return sorted({(line, name) for line, name in uses(ast.parse(source)) if not is_harmless(name)})


def breaches(source: str, path: str = "broker/somewhere.py") -> list[str]:
    allowed = DOORS.get(path, {})
    return [f"{path}:{line}: {name}" for line, name in ways_out(source) if not any(covers(name, door) for door in allowed)]


@pytest.mark.parametrize("path", sources())
def test_all_contact_uses_the_doors(path: str) -> None:
    assert breaches((ROOT / path).read_text(), path) == []


def test_every_door_is_used() -> None:
    idle = [
        f"{path}: {door}"
        for path, doors in DOORS.items()
        for door in doors
        if not any(covers(name, door) for _, name in ways_out((ROOT / path).read_text()))
    ]
    assert idle == []


@pytest.mark.parametrize(
    "source",
    [
        "import time\nt = time.time()",
        "import time\nt = time.monotonic()",
        "from time import time\nt = time()",
        "import time as clock\nnow = clock.time_ns",
        "import datetime\ndatetime.datetime.now()",
        "from datetime import datetime\ndatetime.now()",
        "import random as r\nr.choice([1])",
        "from random import choice",
        "import random\nrandom.SystemRandom()",
        "from uuid import uuid4\nuuid4()",
        "import secrets\nsecrets.token_bytes(1)",
        "import os\nos.urandom(4)",
        "from os import urandom",
        "with open('x') as f: pass",
        "read = open",
        "import io\nio.open('x')",
        "from pathlib import Path\nPath('x').read_text()",
        "import os\nos.environ['X']",
        "import os\nos.getpid()",
        "import os.path",
        "import tempfile",
        "import aiofiles",
        "from aiofiles import open as aopen",
        "import shutil",
        "import mmap",
        "import sqlite3",
        "import socket\nsocket.socket()",
        "import socket\nsocket.gethostname()",
        "import ssl",
        "import select",
        "import aiohttp",
        "import urllib.request",
        "import asyncio\nasyncio.open_connection('h', 1)",
        "import asyncio\nasyncio.start_server(f)",
        "from asyncio import start_server",
        "from asyncio import streams",
        "import asyncio.subprocess",
        "import asyncio\nasyncio.create_subprocess_exec('x')",
        "import asyncio\nasyncio.to_thread(f)",
        "import asyncio\nasyncio.run(f())",
        "import asyncio\nasyncio.new_event_loop()",
        "import asyncio\nasyncio.TaskGroup()",
        "import asyncio\nasyncio.all_tasks()",
        "import asyncio\nasyncio.as_completed(x)",
        "import asyncio as a\nspawn = a",
        "import uvloop",
        "loop.run_in_executor(None, f)",
        "self._loop.run_in_executor(None, f)",
        "later = loop.run_in_executor",
        "loop.getaddrinfo('h', 1)",
        "loop.add_signal_handler(15, f)",
        "loop.create_connection(f, 'h', 1)",
        "loop.create_server(f, 'h', 1)",
        "loop.add_reader(3, f)",
        "loop.subprocess_exec(f, 'x')",
        "loop.call_soon_threadsafe(f)",
        "import threading",
        "import _thread",
        "import queue",
        "from concurrent.futures import ThreadPoolExecutor",
        "import multiprocessing",
        "import subprocess",
        "import signal",
        "import gc",
        "import weakref\nweakref.finalize(x, f)",
        "from weakref import WeakSet",
        "import ctypes",
        "import importlib\nimportlib.import_module('time')",
        "__import__('time')",
        "exec('import time')",
        "print('x')",
        "import sys\nsys.stdin",
        "import sys\nsys.modules['time']",
        "from . import clock",
        "from strandline.testing import history",
        "def f():\n    import time",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import time",
    ],
)
def test_every_way_past_a_door_is_found(source: str) -> None:
    assert breaches(source)


@pytest.mark.parametrize(
    "source",
    [
        "from random import Random\ndef f(random: Random, loop):\n    random.random()\n    loop.time()\n    files.open('x')\n",
        "import random\ndef f(random: random.Random): ...",
        "import asyncio\nasyncio.get_running_loop().call_later(1, f)\nasyncio.sleep(0)",
        "import os\nos.strerror(5)",
        "from strandline.storage.files import Files",
        "import collections.abc\ncollections.abc.Mapping",
    ],
)
def test_permitted_uses_are_accepted(source: str) -> None:
    assert breaches(source) == []


def test_a_door_is_open_only_for_its_file() -> None:
    source = "import time\ntime.time_ns()"
    assert breaches(source, "protocol/doors.py") == []
    assert breaches(source, "broker/process/server.py") != []
    assert breaches("import time\ntime.sleep(1)", "protocol/doors.py") != []


# -- each door can be replaced ----------------------------------------------------------------------------------------


def test_names_are_resolved_in_one_place() -> None:
    """A simulation then replaces `strandline.protocol.rpc.dial.look_up`, and no resolver thread starts."""
    trees = {path: ast.parse((ROOT / path).read_text()) for path in sources()}
    assert [path for path in trees if any(covers(name, resolver.__name__) for _, name in uses(trees[path]))] == [
        "protocol/rpc/dial.py"
    ]


async def test_one_patch_replaces_the_resolver(monkeypatch: pytest.MonkeyPatch) -> None:
    def look_up(host: str) -> asyncio.Future[list[str]]:
        found: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(0.001, found.set_result, [f"10.0.0.{len(host)}"])
        return found

    monkeypatch.setattr(dial, "look_up", look_up)
    monkeypatch.setattr(threading, "Thread", None)
    assert await dial.resolve("broker-7") == ["10.0.0.8"]
    assert await dial.resolve("10.0.0.7") == ["10.0.0.7"]


@pytest.mark.parametrize("client", [Producer, Consumer, Admin])
def test_a_client_uses_the_given_doors(client: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """A simulated client has its own clock and seed, and must never read those of the process."""
    for module in ("producer.producer", "consumer.consumer", "admin.admin"):
        monkeypatch.setattr(f"strandline.client.{module}.real_doors", None)
    doors = Doors(wall_clock_ms=lambda: 0, random=Random(7), stopwatch=lambda: 0.0)
    assert client(bootstrap_servers="10.0.0.1:9092", doors=doors)._doors is doors
