"""Chooses the cluster of a command: by its address, or by its name in the user's configuration file.

The first of these that exists counts:

    --bootstrap or --context                      options
    STRANDLINE_BOOTSTRAP or STRANDLINE_CONTEXT    the environment; the address before the name
    `bootstrap.servers` in the client properties  if --client-config or STRANDLINE_CLIENT_CONFIG names a file that has it
    `strandline context use NAME`                 the current context
    ./cluster.json or ./cluster/cluster.json      a cluster that `strandline up` runs with its data in the current folder
    127.0.0.1:9092                                the default

The file is `strandline/config.toml` in the folder that XDG_CONFIG_HOME names, or in ~/.config:

    current = "prod"

    [contexts.prod]
    bootstrap = "b1:9092,b2:9092"
    client_config = "prod.properties"

A file of Kafka's client properties says how a command authenticates itself and the brokers. The first of these that exists
counts: --client-config, the file of a --context, STRANDLINE_CLIENT_CONFIG, the file of the cluster that the rules above have
chosen (a context, or the local cluster's cluster.json). A relative path in a file is relative to the folder of that file.

A context may have further keys. Commands that do not know a key keep it when they write the file.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import typer

from strandline.cli.notes import note
from strandline.protocol.errors import StrandlineError, UsageError

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
BOOTSTRAP_VARIABLE, CONTEXT_VARIABLE = "STRANDLINE_BOOTSTRAP", "STRANDLINE_CONTEXT"
CLIENT_CONFIG_VARIABLE = "STRANDLINE_CLIENT_CONFIG"
CLIENT_CONFIG = "client_config"
"""The key, in a context and in cluster.json, with the path of the client properties."""
LOCAL_STATES = ("cluster.json", "cluster/cluster.json")
"""Possible paths of a local cluster's state, relative to the current folder."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_CHOSEN, _CHOSEN_CONFIG = "strandline.context", "strandline.client_config"


class Choice(NamedTuple):
    """The address of a cluster. `origin`: the source of the address, as the end of a sentence."""

    bootstrap: str
    origin: str
    client_config: str | None = None
    """The path of the client properties; None: plaintext, and no authentication."""


class Contexts(NamedTuple):
    """The content of the configuration file. `current`: a name of `contexts`, or None."""

    contexts: dict[str, dict[str, Any]]
    """Name -> keys. Each has a `bootstrap`."""
    current: str | None

    def bootstrap(self, name: str) -> str:
        """The address of a context. UsageError if there is no such context."""
        if name not in self.contexts:
            known = f"there are: {', '.join(self.contexts)}" if self.contexts else "there are no contexts yet"
            raise UsageError(f"there is no context {name!r}; {known}; `strandline context add NAME HOST:PORT` adds one")
        return str(self.contexts[name]["bootstrap"])

    def choice(self, name: str, origin: str, file: Path) -> Choice:
        """The context as a choice. `file`: the configuration file. UsageError if there is no such context."""
        bootstrap = self.bootstrap(name)
        return Choice(bootstrap, origin, _beside(file, self.contexts[name].get(CLIENT_CONFIG)))


# -- the file -----------------------------------------------------------------------------------------------------------


def path_of(environment: Mapping[str, str] = os.environ) -> Path:
    """The configuration file."""
    base = environment.get("XDG_CONFIG_HOME", "")
    folder = Path(base) if os.path.isabs(base) else Path(environment.get("HOME") or "~").expanduser() / ".config"
    return folder / "strandline" / "config.toml"


def load(path: Path) -> Contexts:
    """Read the file; a missing one has no contexts. UsageError if it is malformed."""
    try:
        text = path.read_text()
    except (FileNotFoundError, NotADirectoryError):
        return Contexts({}, None)
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not a text file") from None
    import tomllib

    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as e:
        raise UsageError(f"{path} is not TOML: {e}") from None
    contexts, current = document.get("contexts", {}), document.get("current")
    for name, keys in contexts.items() if isinstance(contexts, dict) else ():
        if not isinstance(keys, dict) or not isinstance(keys.get("bootstrap"), str):
            raise UsageError(f'{path}: the context {name} has no bootstrap, such as bootstrap = "127.0.0.1:9092"')
    if not isinstance(contexts, dict) or (current is not None and current not in contexts):
        raise UsageError(f"{path}: `current` names no context of the file; `strandline context use NAME` chooses one")
    return Contexts(contexts, current)


def save(path: Path, content: Contexts) -> None:
    """Replace the file. Comments are lost. StrandlineError if it cannot be written."""
    lines = ["# Written by `strandline context`, which keeps no comments."]
    if content.current is not None:
        lines.append(f"current = {_toml(content.current)}")
    for name, keys in content.contexts.items():
        lines += ["", f"[contexts.{name}]", *(f"{key} = {_toml(value)}" for key, value in keys.items())]
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text("\n".join(lines) + "\n")
        temporary.replace(path)
    except OSError as e:
        raise StrandlineError(f"cannot write {path}: {e.strerror}") from None


def _toml(value: Any) -> str:
    """A string, number, boolean or list of them: TOML writes these as JSON does."""
    return json.dumps(value, ensure_ascii=False)


def checked_name(name: str) -> str:
    """UsageError unless the name can stand in the file and in a shell without quotes."""
    if not NAME.fullmatch(name):
        raise UsageError(f"the name of a context has letters, digits, - and _, not {name!r}")
    return name


# -- the choice ---------------------------------------------------------------------------------------------------------


def choose(
    option: str | None,
    context_option: str | None,
    environment: Mapping[str, str],
    folder: Path,
    file: Path,
    config_option: str | None = None,
) -> Choice:
    """The cluster of a command, and its client properties. `option`, `context_option`, `config_option`: the values of
    --bootstrap, --context and --client-config. UsageError if the first two are both given, or if a context does not exist."""
    if option is not None and context_option is not None:
        raise UsageError("--bootstrap and --context exclude each other: each says which cluster is meant")
    if context_option is not None:
        found = load(file).choice(context_option, f"context {context_option}", file)
        return found._replace(client_config=config_option or found.client_config or environment.get(CLIENT_CONFIG_VARIABLE))
    config = config_option or environment.get(CLIENT_CONFIG_VARIABLE) or None
    if option is not None:
        return Choice(option, "", config)
    found = _chosen_elsewhere(environment, folder, file, config)
    return found if config is None else found._replace(client_config=config)


def _chosen_elsewhere(environment: Mapping[str, str], folder: Path, file: Path, config: str | None) -> Choice:
    """The cluster of a command without --bootstrap and --context."""
    if environment.get(BOOTSTRAP_VARIABLE):
        return Choice(environment[BOOTSTRAP_VARIABLE], BOOTSTRAP_VARIABLE)
    name = environment.get(CONTEXT_VARIABLE)
    if name:
        return load(file).choice(name, f"context {name}, which {CONTEXT_VARIABLE} names", file)
    named = _bootstrap_in(config)
    if named:
        return Choice(named, f"bootstrap.servers of {config}")
    found = load(file)
    if found.current is not None:
        return found.choice(found.current, f"context {found.current}, the current one", file)
    return local_cluster(folder) or Choice(DEFAULT_BOOTSTRAP, "the default")


def _bootstrap_in(config: str | None) -> str | None:
    """The address in the client properties; None without a file, or if it names none."""
    if config is None:
        return None
    from strandline.protocol.security.client_properties import read_properties

    return read_properties(config).get("bootstrap.servers")


def _beside(file: Path, path: object) -> str | None:
    """A path that a file names, relative to the file's folder."""
    return str(file.parent / path) if isinstance(path, str) and path else None


def local_cluster(folder: Path) -> Choice | None:
    """The cluster that `strandline up` runs with its data in this folder. A stopped one does not count."""
    for name in LOCAL_STATES:
        try:
            state = json.loads((folder / name).read_text())
            if Path(state["control"]).exists():
                client_config = _beside(folder / name, state.get(CLIENT_CONFIG))
                return Choice(str(state["bootstrap"]), f"the cluster of ./{name}", client_config)
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return None


def choose_context(context: typer.Context, name: str | None) -> None:
    """Note the value of --context, which may stand before or after the command. UsageError for two different values."""
    if name is not None and context.meta.setdefault(_CHOSEN, name) != name:
        raise UsageError(f"--context is given twice: {context.meta[_CHOSEN]} and {name}")


def chosen_context(context: typer.Context) -> str | None:
    """The value of --context, if it was given."""
    name: str | None = context.meta.get(_CHOSEN)
    return name


def choose_client_config(context: typer.Context, path: str | None) -> None:
    """Note the value of --client-config, which may stand before or after the command. UsageError for two different values."""
    if path is not None and context.meta.setdefault(_CHOSEN_CONFIG, path) != path:
        raise UsageError(f"--client-config is given twice: {context.meta[_CHOSEN_CONFIG]} and {path}")


def chosen_client_config(context: typer.Context) -> str | None:
    """The value of --client-config, if it was given."""
    path: str | None = context.meta.get(_CHOSEN_CONFIG)
    return path


def chosen_bootstrap(context: typer.Context, value: str) -> str:
    """The address that a command uses; its clients reach it as the client properties say (`reach.py`). `value` is that of
    --bootstrap, of its environment variable, or the default."""
    if context.resilient_parsing:
        return value
    source = getattr(context.get_parameter_source("bootstrap"), "name", "")
    option = value if source == "COMMANDLINE" else None
    choice = choose(
        option, chosen_context(context), os.environ, Path.cwd(), path_of(), config_option=chosen_client_config(context)
    )
    origins[choice.bootstrap] = choice.origin
    use_client_config(choice)
    return choice.bootstrap


def use_client_config(choice: Choice, note: Callable[[str], None] = note) -> None:
    """Have the clients of this process reach the cluster as its client properties say. UsageError if they cannot be used."""
    if choice.client_config is None:
        return
    from strandline.protocol.security.client_properties import may_be_read_by_others, read_properties
    from strandline.protocol.security.client_security import security_of
    from strandline.reach import remember

    properties = read_properties(choice.client_config)
    if may_be_read_by_others(choice.client_config, properties):
        note(f"{choice.client_config} has a secret in it, and others may read it: chmod 600 {choice.client_config}")
    security = security_of(properties, choice.client_config)
    remember(choice.bootstrap, security, os.path.abspath(choice.client_config))


origins: dict[str, str] = {}
"""The address that this process uses -> where it comes from; for the error when no broker answers there."""
