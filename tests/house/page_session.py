"""Runs the examples of a page in the order in which a reader meets them: the commands in one shell, the Python in one namespace.

    ```console               a line with `$ ` begins a command, `> ` continues it, and what follows is its output
    ```python                top-level `await` is allowed, as in a coroutine
    ```text                  directly after Python: what it prints
    # worker.py              as the first line of Python: a file, which later commands use
    # aiokafka               as the first line of Python: runs against a mock cluster of librdkafka, in a namespace of its own
    <!-- not run: why -->    directly before a block

    python tests/house/page_session.py docs/PAGE.md      writes the outputs into the page; look at the diff

Outputs are compared as `tests/docker/tutorial.py` does it: what differs from run to run is replaced by a placeholder. A page
whose commands include `strandline up` runs its own cluster; the others get one. Pages have the default addresses.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

if __name__ == "__main__":  # As a program; for tests pytest adds these folders.
    sys.path[:0] = [str(Path(__file__).parents[1] / room) for room in ("cli", "docker")]

from cli_world import COMMAND, ENVIRONMENT
from tutorial import shape

from strandline.local_cluster import free_port_range
from strandline.testing import Cluster

FOREIGN = ("aiokafka", "confluent-kafka")
"""Other clients, whose code a page shows beside ours."""
COMMAND_MAX_S = 60.0

_FENCE = re.compile(r"^```(\w+)$(.*?)^```$", re.MULTILINE | re.DOTALL)
_NOT_RUN = re.compile(r"<!-- not run: (.+?) -->\n\Z", re.DOTALL)
_FILE = re.compile(r"# ([\w-]+\.\w+)$", re.MULTILINE)

_PLACEHOLDERS = (
    (r"\b(pid|running) +\d+", r"\1 <n>"),  # a process id
    (r"(?<![\w-])[A-Za-z0-9_-]{22}(?![\w-])", "<id>"),
    (r"\bcoordinator (broker )?\d+", "coordinator <n>"),
    (r"\bvalid until [\d-]+", "valid until <day>"),
    (r"^( *\d+ +)\d+(?=( +\d+){3} +\w+$)", r"\1<n>"),  # the leader in a row of `topic offsets`
)
_ANY_ORDER = re.compile(r"strandline (group|topic) describe\b")
"""Members have random ids, and so a random order."""
_ANY_NUMBER = re.compile(r"strandline topic describe\b")
"""The first leader of a topic is drawn."""


class Example(NamedTuple):
    """A command or a piece of Python, and what the page shows as its output."""

    line: int
    kind: str
    """console or python."""
    code: str
    shown: list[str]
    output: tuple[int, int]
    """The lines of the page that are the output: the first one, and the one after the last. Both are 0: the page shows none."""
    why_not: str = ""
    """Why it is not run."""

    @property
    def label(self) -> str:
        """The first comment of a piece of Python: the name of a file or a client, if the block has one."""
        return self.code.splitlines()[0].removeprefix("# ") if self.code.startswith("# ") else ""


def examples_of(page: str) -> Iterator[Example]:
    """The examples of a page, in its order. Blocks in other languages are none."""
    fences = list(_FENCE.finditer(page))
    for number, fence in enumerate(fences):
        line, body = page.count("\n", 0, fence.start()) + 2, fence[2].removeprefix("\n")
        reason = _NOT_RUN.search(page, 0, fence.start())
        why_not = " ".join(reason[1].split()) if reason else ""
        if fence[1] == "console":
            yield from _commands(body, line, why_not)
        elif fence[1] == "python":
            shown, output = _printed(page, fence, fences[number + 1 : number + 2])
            yield Example(line, "python", body, shown, output, why_not)


def _commands(body: str, first: int, why_not: str) -> Iterator[Example]:
    lines = body.splitlines()
    starts = [n for n, line in enumerate(lines) if line.startswith("$ ")]
    assert starts[:1] == [0], f"line {first}: a console begins with a command"
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        words = [lines[start][2:]]
        while start + len(words) < end and lines[start + len(words)].startswith("> "):
            words.append(lines[start + len(words)][2:])
        after = start + len(words)
        yield Example(first + start, "console", "\n".join(words), lines[after:end], (first + after, first + end), why_not)


def _printed(page: str, fence: re.Match[str], following: list[re.Match[str]]) -> tuple[list[str], tuple[int, int]]:
    """The block of text directly after a block of Python, and its lines in the page."""
    for text in following:
        if text[1] == "text" and not page[fence.end() : text.start()].strip():
            lines, first = text[2].removeprefix("\n").splitlines(), page.count("\n", 0, text.start()) + 2
            return lines, (first, first + len(lines))
    return [], (0, 0)


def comparable(code: str, lines: list[str]) -> list[str]:
    """An output without what differs from run to run."""
    replaced = list(lines)
    for pattern, placeholder in _PLACEHOLDERS + ((r"\d+(,\d+)*", "<n>"),) * bool(_ANY_NUMBER.search(code)):
        replaced = [re.sub(pattern, placeholder, line) for line in replaced]
    return sorted(shape(code, replaced)) if _ANY_ORDER.search(code) else shape(code, replaced)


# -- running ----------------------------------------------------------------------------------------------------------


def run_page(page: str, folder: Path) -> Iterator[tuple[Example, list[str]]]:
    """Run the examples of a page and yield each with its output. `folder`: the working directory, empty."""
    examples = [example for example in examples_of(page) if not example.why_not]
    if not examples:
        return
    with contextlib.ExitStack() as stack, contextlib.chdir(folder):
        if any("strandline up" in example.code for example in examples):
            addresses = _own_addresses()
        else:
            cluster = stack.enter_context(Cluster.running_in_thread(brokers=3, offsets_topic_num_partitions=5))
            addresses = {"127.0.0.1:9092": cluster.bootstrap_servers}
        session = _Session(folder, addresses, stack)
        for example in examples:
            try:
                output = session.run(example)
            except Exception as e:
                text = "".join(traceback.format_exception(e))
                raise AssertionError(f"the {example.kind} in line {example.line} failed: {text}") from None
            yield example, output


def _own_addresses() -> dict[str, str]:
    """Address on the page -> address of the cluster that the page starts. It has other ports, so that tests do not collide."""
    base = free_port_range(15)
    return {"strandline up": f"strandline up --base-port {base}"} | {
        f"127.0.0.1:{9092 + i}": f"127.0.0.1:{base + i}" for i in range(15)
    }


class _Session:
    """The shell and the namespaces of a page."""

    def __init__(self, folder: Path, addresses: dict[str, str], stack: contextlib.ExitStack) -> None:
        self._folder, self._addresses, self._stack = folder, addresses, stack
        servers = addresses["127.0.0.1:9092"]
        self._shell = stack.enter_context(contextlib.closing(_Shell(folder, {"STRANDLINE_BOOTSTRAP": servers})))
        self._runner = stack.enter_context(asyncio.Runner())
        self._namespaces: dict[str, dict[str, Any]] = {}
        stack.callback(lambda: [namespace.clear() for namespace in self._namespaces.values()])

    def run(self, example: Example) -> list[str]:
        code = self._with_addresses(example)
        if example.kind == "console":
            return self._as_on_the_page(self._shell.run(code))
        file = _FILE.match(example.code)
        if file is not None:
            (self._folder / file[1]).write_text(code)
            return []
        name = example.label if example.label in FOREIGN else ""
        namespace = self._namespaces.setdefault(name, {"__name__": "__main__"})
        return self._as_on_the_page(self._python("\n" * (example.line - 1) + code, namespace))

    def _with_addresses(self, example: Example) -> str:
        if example.label in FOREIGN:
            return example.code.replace("localhost:9092", self._mock_cluster())
        code = example.code
        for on_page, here in self._addresses.items():
            code = code.replace(on_page, here)
        return code

    def _as_on_the_page(self, output: str) -> list[str]:
        for on_page, here in self._addresses.items():
            output = output.replace(here, on_page)
        return [line.rstrip() for line in output.strip("\n").splitlines()]

    def _python(self, code: str, namespace: dict[str, Any]) -> str:
        """Run a piece of Python. With `await`, or as code for asyncio, it runs as in a coroutine."""
        compiled = compile(code, "page", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)

        async def in_a_coroutine() -> None:
            result = eval(compiled, namespace)
            if inspect.iscoroutine(result):
                await result

        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            if compiled.co_flags & inspect.CO_COROUTINE or "AIOKafka" in code:
                self._runner.run(in_a_coroutine())
            else:
                exec(compiled, namespace)
        return out.getvalue()

    def _mock_cluster(self) -> str:
        if not hasattr(self, "_mock"):
            from confluent_kafka import Producer

            self._mock = Producer({"test.mock.num.brokers": 3, "bootstrap.servers": "none"})
            self._mock_servers = ",".join(f"{b.host}:{b.port}" for b in self._mock.list_topics(timeout=10).brokers.values())
        return self._mock_servers


class _Shell:
    """One bash for the whole page, so that what a command leaves is there for the next: variables, files, processes."""

    END = "-- end of command --"

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        runtime = folder / ".runtime"  # hides the other clusters of this user from the page's commands
        runtime.mkdir()
        own = {"PATH": f"{Path(COMMAND[0]).parent}:{os.environ['PATH']}", "COLUMNS": "120", "XDG_RUNTIME_DIR": str(runtime)}
        self._printed = folder / ".printed"
        with self._printed.open("wb") as out:
            self._bash = subprocess.Popen(
                ["bash", "--norc", "--noprofile"],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=ENVIRONMENT | own | environment,
                start_new_session=True,
                text=True,
            )

    def run(self, command: str) -> str:
        """Run a command; returns what it printed. AssertionError if it takes too long."""
        assert self._bash.stdin is not None
        begin = self._printed.stat().st_size
        self._bash.stdin.write(f"{{\n{command}\n}} < /dev/null\nprintf '\\n{self.END}\\n'\n")
        self._bash.stdin.flush()
        self._wait(lambda: self._since(begin).endswith(f"{self.END}\n"), command)
        return self._since(begin).removesuffix(f"{self.END}\n").removesuffix("\n")

    def _since(self, begin: int) -> str:
        with self._printed.open() as printed:
            printed.seek(begin)
            return printed.read()

    def _wait(self, condition: Callable[[], bool], command: str) -> None:
        deadline = time.monotonic() + COMMAND_MAX_S
        while not condition():
            assert self._bash.poll() is None, f"the shell ended in {command!r}"
            assert time.monotonic() < deadline, f"{command!r} did not end within {COMMAND_MAX_S:g} s"
            time.sleep(0.01)

    def close(self) -> None:
        """Ends the shell and what it has started; the nodes of `strandline up` end with it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._bash.pid, signal.SIGKILL)
        self._bash.communicate()


# -- writing ----------------------------------------------------------------------------------------------------------


def with_outputs(page: str, printed: list[tuple[Example, list[str]]]) -> str:
    """The page with these outputs in the place of those that it shows."""
    lines = page.splitlines()
    for example, output in reversed(printed):
        first, end = example.output
        if first:
            lines[first - 1 : end - 1] = output
    return "\n".join(lines) + "\n"


def main() -> None:
    for name in sys.argv[1:]:
        path = Path(name).resolve()
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            printed = list(run_page(path.read_text(), Path(folder)))
        path.write_text(with_outputs(path.read_text(), printed))


if __name__ == "__main__":
    main()
