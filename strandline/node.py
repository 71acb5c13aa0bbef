"""Runs one node of a cluster, a broker or a controller: from its configuration to its end.

    python -m strandline.node broker --config broker-1.toml --set broker.rack=a

A configuration has three layers; a later one overrides an earlier one: a TOML file with Kafka's key names, the environment
(`STRANDLINE_NODE_ID` is `node.id`), and `--set key=value`. An unknown key is an error that names the nearest known one.

Signals: the first SIGTERM or SIGINT stops the node cleanly (it hands its leaders over and writes checkpoints), a second
one ends it at once, and SIGHUP makes it read its certificates and users again. With `--stop-with-parent`, the end of standard
input stops the node too: the parent process holds the other end of that pipe, so a node does not outlive its local cluster.

A process serves health and metrics over HTTP (`http.listener`) from before its start to after its stop, so that an
orchestrator can tell a long recovery from a hang.

The command line is parsed by hand, without typer and rich, because an outage lasts until a restarted node is up.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple, Protocol

from strandline import logs
from strandline.file_watch import FileWatch
from strandline.observe.health import Health
from strandline.observe.http import HttpPort, bind
from strandline.observe.loop_lag import LoopLag
from strandline.protocol.errors import StrandlineError, UsageError
from strandline.protocol.metrics import Histogram

ROLES = ("broker", "controller")
RESERVED_ENVIRONMENT = frozenset(
    {
        "STRANDLINE_BOOTSTRAP",
        "STRANDLINE_CLIENT_CONFIG",
        "STRANDLINE_CONFIG",
        "STRANDLINE_CONTEXT",
        "STRANDLINE_DOCKER_ENGINE",
        "STRANDLINE_KAFKA_TOOLS",
        "STRANDLINE_LOG_FORMAT",
        "STRANDLINE_LOG_LEVEL",
        "STRANDLINE_REQUIRE_CHROMIUM",
        "STRANDLINE_REQUIRE_DOCKER",
        "STRANDLINE_REQUIRE_KAFKA",
        "STRANDLINE_REQUIRE_TOOLS",
        "STRANDLINE_SEED",
    }
)
"""Variables of Strandline that are no configuration keys of a node."""
FAILED = 1
"""Exit code of an error of the environment, such as a port in use, a locked data directory or a failed disk. A retry can
succeed."""
SWITCH_INTERVAL_S = 0.0002
"""After how long a thread lets the event loop run. The default, 5 ms, delays a request several times if a thread cleans a log or
converts compressed batches meanwhile, because the loop gives up the interpreter at every system call."""
WRONG_USAGE = 2
"""Exit code of an error in the configuration or the command line. A retry fails again."""


class Server(Protocol):
    """The interface of a broker and a controller to their process. If a server has a `failure`, it is a future that
    completes with the reason when the server cannot continue."""

    config: Any
    security: Any
    port: int
    ready: asyncio.Event

    async def start(self) -> None: ...
    async def stop(self) -> None: ...


# -- configuration ----------------------------------------------------------------------------------------------------


def read_config(role: str, path: str | None, environment: Mapping[str, str], settings: Iterable[str]) -> dict[str, Any]:
    """The three layers as one flat mapping of dotted keys. Raises UsageError for a malformed file, variable or setting."""
    config = read_toml(path) if path else {}
    config.update(from_environment(role, environment))
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"--set takes key=value, not {setting!r}")
        _refuse_secret(role, key.strip())
        config[key.strip()] = value.strip()
    return config


def _refuse_secret(role: str, name: str) -> None:
    """Raise UsageError for the key of a secret: every user of the machine can read the command line of a process."""
    plain = name.split(".", 3)[-1] if name.startswith("listener.name.") else name
    if any(key.sensitive for key in keys_of(role) if key.name == plain):
        raise UsageError(
            f"config {name} is a secret, and others can read a command line: set it in the configuration file, or as "
            f"{environment_name(name)} in the environment"
        )


def read_toml(path: str) -> dict[str, Any]:
    """Read a TOML file as dotted keys: `node.id = 1`, `"node.id" = 1` and `[node] id = 1` all mean the same. Raises UsageError if
    the file cannot be read or is not TOML."""
    import tomllib

    try:
        with open(path, "rb") as file:
            tree = tomllib.load(file)
    except tomllib.TOMLDecodeError as e:
        raise UsageError(f"{path} is not valid TOML: {e}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not valid TOML: it is not text in UTF-8") from None
    except OSError as e:
        raise UsageError(f"cannot read {path}: {e.strerror}") from None
    return dict(_flatten(tree, ""))


def _flatten(tree: Mapping[str, Any], prefix: str) -> Iterable[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def from_environment(role: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the keys in `STRANDLINE_<KEY>` variables, with dots as underscores. Keys of the other role are ignored. Raises
    UsageError for an unknown key or a wrong value.

    STRANDLINE_LISTENER_NAME_INTERNAL_SSL_CLIENT_AUTH is the key of one listener: listener.name.internal.ssl.client.auth."""
    given = {n: v for n, v in environment.items() if n.startswith("STRANDLINE_") and n not in RESERVED_ENVIRONMENT}
    if not given:
        return {}
    ours = {environment_name(key.name): key for key in keys_of(role)}
    others = {environment_name(key.name) for other in ROLES if other != role for key in keys_of(other)}
    config = {}
    for name, value in sorted(given.items()):
        if name in ours:
            _check_value(name, ours[name], value)
            config[ours[name].name] = value
        elif override := _override(name):
            config[override] = value
        elif name not in others:
            from strandline.controller.metadata.config_keys import nearest

            guess = nearest(name, map(str.lower, ours))
            raise UsageError(f"unknown environment variable {name!r}" + (f"; did you mean {guess.upper()!r}?" if guess else ""))
    return config


def _override(name: str) -> str | None:
    """The key of one listener that a variable names, or None."""
    if not name.startswith("STRANDLINE_LISTENER_NAME_"):
        return None
    from strandline.controller.metadata.node_security.overrides import OVERRIDABLE, PREFIX

    prefix = environment_name(PREFIX)
    for key in OVERRIDABLE:
        suffix = "_" + environment_name(key).removeprefix("STRANDLINE_")
        listener = name[len(prefix) : -len(suffix)].lower()
        if name.endswith(suffix) and listener:
            return f"{PREFIX}{listener}.{key}"
    return None


def _check_value(name: str, key: Any, value: str) -> None:
    """Raise UsageError with the variable's name if its value is invalid."""
    if not value.strip() and key.is_required:
        raise UsageError(f"environment variable {name} is empty; config {key.name} is required: {key.meaning}")
    try:
        key.parse(value)
    except UsageError as e:
        raise UsageError(f"environment variable {name}: {e}") from None


def environment_name(key: str) -> str:
    return "STRANDLINE_" + key.replace(".", "_").replace("-", "_").upper()


def keys_of(role: str) -> Sequence[Any]:
    """The `ConfigKey`s of a node with this role."""
    from strandline.controller.metadata.node_keys import BROKER_KEYS, CONTROLLER_KEYS

    return BROKER_KEYS if role == "broker" else CONTROLLER_KEYS


def make_server(role: str, mapping: Mapping[str, Any]) -> tuple[str, Server]:
    """The node's name, and its server, which is not started yet."""
    from strandline.protocol.doors import real_doors
    from strandline.storage.files import RealFiles

    if role == "broker":
        from strandline.broker.config import BrokerConfig
        from strandline.broker.process.server import BrokerServer

        broker = BrokerConfig.from_mapping(mapping)
        return f"broker-{broker.node_id}", BrokerServer(broker, real_doors(), RealFiles())
    from strandline.controller.config import ControllerConfig
    from strandline.controller.server import ControllerServer

    controller = ControllerConfig.from_mapping(mapping)
    return f"controller-{controller.node_id}", ControllerServer(controller, real_doors(), RealFiles())


# -- the process ------------------------------------------------------------------------------------------------------


async def serve(
    name: str, role: str, server: Server, http_listener: socket.socket | None, *, stop_with_parent: bool = False
) -> StrandlineError | None:
    """Start the server, wait for a request to stop, and stop it cleanly. HTTP is served all that time.

    Returns the error of a running node that could not continue, or None. Raises the error of a failed start.
    """
    loop = asyncio.get_running_loop()
    asked = _listen_to_signals(loop)
    if stop_with_parent:
        loop.add_reader(0, _on_stdin, loop, asked)
    watch = FileWatch(server.security)
    loop.add_signal_handler(signal.SIGHUP, watch.reload)
    watch.start()
    lag = LoopLag(loop, Histogram())
    health = Health(name, role, server, lag)
    asked.add_done_callback(lambda done: health.on_stopping(done.result()))
    http = None if http_listener is None else HttpPort(http_listener, health, server, lag)
    if http is not None:
        http.start()
    lag.start()
    try:
        return await _run(server, asked, http.address if http is not None else "")
    finally:
        lag.stop()
        watch.stop()
        if http is not None:
            await http.stop()


def _listen_to_signals(loop: asyncio.AbstractEventLoop) -> asyncio.Future[str]:
    """A future that completes with the reason when a signal asks the node to stop."""
    asked: asyncio.Future[str] = loop.create_future()

    def on_signal(number: int) -> None:
        if asked.done():
            os._exit(128 + number)  # the second signal: exit at once
        asked.set_result(signal.Signals(number).name)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    return asked


async def _run(server: Server, asked: asyncio.Future[str], http_address: str) -> StrandlineError | None:
    logger = logs.structlog.get_logger()
    start = asyncio.ensure_future(server.start())
    await _first_of(start, asked)
    if not start.done():
        # The stop came while it recovers its logs or waits for the controller. The next start recovers again.
        start.cancel()
        await asyncio.wait({start})
        logger.info("node.stopped", reason=f"{asked.result()} during the start")
        return None
    start.result()
    logger.info("node.started", port=server.port, pid=os.getpid(), http=http_address)
    _calm_the_collector()
    failure: asyncio.Future[StrandlineError] = getattr(server, "failure", None) or asyncio.get_running_loop().create_future()
    await _first_of(asked, failure)
    error = None if asked.done() else failure.result()  # decided before the stop: a signal that arrives later hides no failure
    logger.info("node.stopping", reason=asked.result() if error is None else str(error))
    await server.stop()
    logger.info("node.stopped")
    return error


async def _first_of(*futures: asyncio.Future[Any]) -> None:
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


def _on_stdin(loop: asyncio.AbstractEventLoop, asked: asyncio.Future[str]) -> None:
    try:
        ended = not os.read(0, 4096)
    except OSError:
        ended = True
    if ended:
        loop.remove_reader(0)
        if not asked.done():
            asked.set_result("the parent process ended")


def _calm_the_collector() -> None:
    """Exclude the objects of the start-up from garbage collections, which pause the loop: they live as long as the node."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 100)


def run(role: str, config: str | None, settings: Sequence[str] = (), stop_with_parent: bool = False) -> int:
    """Run a node in this process until it stops; returns the exit code. An error is one sentence on stderr."""
    _prepare_to_be_process_one()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    logs.configure(node=role, environment=os.environ)
    try:
        logs.check_environment(os.environ)
        name, server = make_server(role, read_config(role, config, os.environ, settings))
    except UsageError as e:
        complain(role, sentence(e), started=False)
        return WRONG_USAGE
    logs.configure(node=name, environment=os.environ)
    try:
        with bind(server.config.values["http.listener"]) or nullcontext() as http_listener:
            import uvloop

            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                failure = runner.run(serve(name, role, server, http_listener, stop_with_parent=stop_with_parent))
    except (StrandlineError, OSError) as e:
        complain(name, sentence(e), started=False)
        return FAILED
    if failure is None:
        return 0
    complain(name, sentence(failure), started=True)
    return FAILED


def _prepare_to_be_process_one() -> None:
    """Prepare for being process 1 of a container. The kernel gives process 1 no default actions, so a SIGTERM before the
    loop handles it would be lost; and process 1 has to reap every orphan in the container."""
    signal.signal(signal.SIGTERM, lambda number, frame: os._exit(0))
    if os.getpid() == 1:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)


def sentence(error: Exception) -> str:
    """The error as one sentence for a person, with the operating system's text but without its number."""
    if isinstance(error, OSError) and not isinstance(error, StrandlineError):
        reason = error.strerror or str(error)
        return f"{error.filename}: {reason}" if error.filename else reason
    return str(error)


def complain(name: str, text: str, *, started: bool) -> None:
    """Report why a node ends: as a sentence for a person, or as a log line if the log format is JSON."""
    logger = logs.structlog.get_logger()
    if not logs.is_json(os.environ):
        print(f"strandline: {name}: {text}", file=sys.stderr, flush=True)
    elif started:
        logger.error("node.failed", reason=text)
    else:
        logger.error("node.refused", reason=text)


USAGE = "usage: python -m strandline.node broker|controller [--config FILE] [--set KEY=VALUE]... [--stop-with-parent]"


class Arguments(NamedTuple):
    config: str | None
    settings: list[str]
    stop_with_parent: bool


def parse(words: Sequence[str]) -> Arguments | None:
    """The options after the role on the command line; None if they cannot be parsed."""
    config, settings, stop_with_parent = os.environ.get("STRANDLINE_CONFIG") or None, [], False
    rest = list(words)
    while rest:
        option, equals, value = rest.pop(0).partition("=")
        if option == "--stop-with-parent" and not equals:
            stop_with_parent = True
            continue
        if option not in ("--config", "--set") or not (equals or rest):
            return None
        value = value if equals else rest.pop(0)
        if option == "--config":
            config = value
        else:
            settings.append(value)
    return Arguments(config, settings, stop_with_parent)


def main(words: Sequence[str]) -> int:
    arguments = parse(words[1:])
    if not words or words[0] not in ROLES or arguments is None:
        print(USAGE, file=sys.stderr)
        return WRONG_USAGE
    return run(words[0], *arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
