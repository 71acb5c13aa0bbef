"""Asks one node over HTTP whether it is ready. A container's health check runs this every second or two, so it is a socket
and a few lines of HTTP/1.0: no asyncio, no typer, no HTTP client.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from strandline.protocol.errors import UsageError

HEALTHY, UNHEALTHY = 0, 3
LISTENER = "STRANDLINE_HTTP_LISTENER"
DEFAULT_ADDRESS = "127.0.0.1:8092"
DEFAULT_TIMEOUT_S = 2.0
ANSWER_BYTES_MAX = 1 << 24
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class Question(NamedTuple):
    json: bool
    timeout_s: float


class Verdict(NamedTuple):
    """The result of any health check, as `--json` prints it."""

    healthy: bool
    target: str
    """The address that was checked."""
    problems: list[str]
    """Sentences; empty when healthy."""
    facts: Mapping[str, Any] = MappingProxyType({})
    """Further facts, under stable keys."""
    summary: str = ""
    """One sentence, if healthy."""
    warnings: Sequence[str] = ()
    """Sentences about what an operator should change; they do not make the node less healthy."""

    @property
    def document(self) -> dict[str, Any]:
        """The verdict for programs."""
        return {"healthy": self.healthy, "target": self.target, "problems": self.problems, **self.facts}

    @property
    def lines(self) -> list[str]:
        """The verdict for people."""
        sentences = [self.summary] if self.healthy else self.problems
        return [*sentences, *(f"warning: {warning}" for warning in self.warnings)]


def parse(words: Sequence[str]) -> Question | None:
    """The options of `strandline health` without a target; None for any other command line."""
    as_json, timeout_s = False, DEFAULT_TIMEOUT_S
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "--json":
            as_json = True
        elif word == "--timeout" and rest:
            try:
                timeout_s = float(rest.pop(0))
            except ValueError:
                return None
            if not 0.001 <= timeout_s <= 86_400:
                return None
        else:
            return None
    return Question(as_json, timeout_s)


def run(question: Question) -> int:
    return tell(ask_own_node(os.environ.get(LISTENER), question.timeout_s), as_json=question.json)


def ask_own_node(listener: str | None, timeout_s: float) -> Verdict:
    """Check the node of this container or machine. If the address is the default, a problem says so."""
    verdict = ask_node(own_address(listener), timeout_s)
    if listener is not None or verdict.healthy or verdict.facts:
        return verdict
    why = f"the default, as {LISTENER} is not set; --broker HOST:PORT asks another node, --cluster all"
    return verdict._replace(problems=[f"{problem} ({why})" for problem in verdict.problems])


def own_address(listener: str | None) -> str:
    """The HTTP address of the node of this container or machine. Raises UsageError if it serves no HTTP."""
    if listener is None:
        return DEFAULT_ADDRESS
    if not listener.strip():
        raise UsageError(f"{LISTENER} is empty: this node serves no HTTP, and cannot be asked")
    host, port = split_address(listener, f"{LISTENER} is the address of this node's HTTP")
    return join_address(_EVERYWHERE.get(host, host), port)


def split_address(text: str, what: str) -> tuple[str, int]:
    """Split host:port. Raises UsageError, which begins with `what`, if the text has another form."""
    host, _, port = text.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise UsageError(f"{what}: {text!r} is not of the form host:port")
    return host, int(port)


def join_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def ask_node(address: str, timeout_s: float) -> Verdict:
    """Check whether the node at this HTTP address is ready. Never raises: a node that does not answer is not healthy."""
    try:
        _, body = get(address, "/health/ready", timeout_s)
        return judge_node(address, json.loads(body))
    except TimeoutError:
        return Verdict(False, address, [f"no answer from {address} within {timeout_s:g} s"])
    except OSError as e:
        reason = e.strerror or str(e)
        return Verdict(False, address, [f"cannot reach {address}: {reason[:1].lower()}{reason[1:]}"])
    except UnicodeError:
        return Verdict(False, address, [f"cannot reach {address}: that is no host's name"])
    except (ValueError, KeyError, TypeError):
        return Verdict(False, address, [f"what answers at {address} is not the HTTP of a Strandline node"])


def judge_node(address: str, answer: dict[str, Any]) -> Verdict:
    """The verdict in a node's answer to `/health/ready`."""
    node, ready = str(answer["node"]), answer["status"] == "ready"
    problems = [f"{node} is not ready: {check['name']}: {check['detail']}" for check in answer["checks"] if not check["ok"]]
    return Verdict(ready, address, problems, answer, f"{node} is ready", list(answer.get("warnings", ())))


def get(address: str, path: str, timeout_s: float) -> tuple[int, bytes]:
    """GET a page: status and body. Raises OSError (or TimeoutError) without an answer, ValueError if it is not HTTP."""
    status, _, body = exchange(address, path, timeout_s)
    return status, body


def exchange(address: str, path: str, timeout_s: float) -> tuple[int, dict[str, str], bytes]:
    """GET a page: status, headers by their names in lower case, and body. Errors are those of `get`."""
    deadline = time.monotonic() + timeout_s
    host, port = split_address(address, "an address")
    with socket.create_connection((host, port), timeout_s) as connection:
        connection.sendall(f"GET {path} HTTP/1.0\r\nHost: {address}\r\nAccept: application/json\r\n\r\n".encode())
        answer = bytearray()
        while len(answer) < ANSWER_BYTES_MAX:
            connection.settimeout(max(deadline - time.monotonic(), 0.001))
            piece = connection.recv(65536)
            if not piece:
                break
            answer += piece
    head, separator, body = bytes(answer).partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    words = first.split(b" ", 2)
    if not separator or not words[0].startswith(b"HTTP/1.") or len(words) < 2:
        raise ValueError("the answer is not HTTP")
    fields = (line.decode("latin-1").partition(":") for line in lines)
    return int(words[1]), {name.strip().lower(): value.strip() for name, _, value in fields}, body


def tell(verdict: Verdict, *, as_json: bool) -> int:
    """Print the verdict; returns the exit code."""
    if as_json:
        print(json.dumps(verdict.document, ensure_ascii=False))
    else:
        print("\n".join(verdict.lines))
    sys.stdout.flush()
    return HEALTHY if verdict.healthy else UNHEALTHY
