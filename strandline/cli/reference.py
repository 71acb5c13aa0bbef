"""docs/cli.md, generated from the commands: `python -m strandline.cli.reference > docs/cli.md`.

Usage, texts, options and examples are those of `--help`, so the page cannot contradict it; a test compares the two. Options that
many commands have are described once, at the head of the page.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from strandline.cli.commands import COMMANDS
from strandline.cli.root import app

_INTRODUCTION = """\
# The command line

Generated from the commands by `python -m strandline.cli.reference`; do not edit.

`strandline --help` lists the commands, and each command has a `--help` with the text of this page.

**Exit codes**: 0 ok; 1 an error, or an incomplete result; 2 wrong usage; 3 not healthy, or a bad verdict; 130 interrupted. If a
broker is down, a read prints what the others know, names what is missing, and exits with 1. Ctrl-C ends a command at once, or
within about a second if it has a summary to print; a second Ctrl-C ends it without.

**What destroys something** asks first, unless `--yes` is given.

**Kafka's own option names** are understood where their users would type them (`--bootstrap-server`, `--topic`, `--partitions`,
`--config`, `--from-beginning`, `--reset-offsets`, ...), and the short options of kcat and rpk by `produce` and `consume`.

## Commands

| command | what it does |
|---|---|
"""

_OPTIONS = """
## Which cluster a command talks to

The first of these that is there decides:

1. `--bootstrap` or `--context`,
2. `STRANDLINE_BOOTSTRAP` or `STRANDLINE_CONTEXT` in the environment,
3. `bootstrap.servers` in the client configuration,
4. the current context (`strandline context use`),
5. a cluster that `strandline up` runs with its data in the current folder or in `./cluster`,
6. `127.0.0.1:9092`.

How it authenticates is in a file of Kafka's client properties (`security.protocol`, `sasl.jaas.config`, ...), which Kafka's tools
read, too: that of `--client-config`, of the `--context`, of `STRANDLINE_CLIENT_CONFIG`, of the current context
(`strandline context add NAME HOST:PORT --client-config FILE`), or of the local cluster. Without one, it connects in plaintext.

Contexts are names for clusters, kept in `~/.config/strandline/config.toml`. `strandline context show` prints the address that
counts, and why.

## Options of many commands

"Common options" below are these, as far as a command lists them:

"""

_CONFIGURATION = """
## Configuration of a node

`broker` and `controller` read their configuration from `--config FILE`. Environment variables override the file
(`STRANDLINE_NODE_ID` sets `node.id`), and `--set key=value` overrides both. [configuration-keys.md](configuration-keys.md)
lists the keys, [configuration.md](configuration.md) says which can be changed while the nodes run.
"""

_COMMON = ("bootstrap", "context", "client_config", "output", "json", "wide", "watch")
_HAS_ALL = ("group", "list")
"""A command with every common option."""
_EXAMPLES = re.compile(r"Examples?:\n((?:  .*\n?)+)")


def reference() -> str:
    """The whole page."""
    root: Any = get_command(app)
    context = root.make_context("strandline", [], resilient_parsing=True)
    commands = dict(_commands(root, context, ()))
    command, its_context = commands[_HAS_ALL]
    lines = [f"| [`{name}`](#{name}) | {_escaped(text)} |\n" for name, (_, text) in COMMANDS.items()]
    head = [
        _INTRODUCTION,
        *lines,
        _OPTIONS,
        *_table("option", [p for p in command.params if p.name in _COMMON], its_context),
        _CONFIGURATION,
    ]
    return "".join([*head, *(part for path, found in commands.items() for part in _describe(path, *found))])


def _commands(command: Any, context: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], tuple[Any, Any]]]:
    """The commands by their words: each with its context, a group before its commands."""
    if path:
        yield path, (command, context)
    for name in getattr(command, "list_commands", lambda context: ())(context):
        below = command.get_command(context, name)
        yield from _commands(below, below.make_context(name, [], parent=context, resilient_parsing=True), (*path, name))


def _describe(path: tuple[str, ...], command: Any, context: Any) -> Iterator[str]:
    text = command.help or COMMANDS[path[0]][1]
    yield f"\n{'#' * (len(path) + 1)} {' '.join(path)}\n\n{_text(text)}\n"
    if hasattr(command, "commands") and not command.invoke_without_command:
        return  # A group that does nothing by itself; its commands follow.
    yield f"\n```text\nstrandline {' '.join((*path, *_usage(command, context)))}\n```\n"
    own = [p for p in command.params if not _is_common(p, command)]
    if own:
        yield from ("\n", *_table("argument or option", own, context))
    common = [f"`{p.opts[0]}`" for p in command.params if _is_common(p, command)]
    if common:
        yield f"\nCommon options: {', '.join(common)}.\n"
    yield from _examples(command.epilog)


def _usage(command: Any, context: Any) -> Iterator[str]:
    """The pieces of the usage line after the command's words. Some versions of Click write a required argument as {NAME}."""
    for piece in command.collect_usage_pieces(context):
        if piece != "COMMAND [ARGS]...":  # A group that is itself a command has this piece; its commands have their own sections.
            yield piece.strip("{}")


def _is_common(parameter: Any, command: Any) -> bool:
    """`--json` is a common option beside `--output`; `produce` and `consume` have another one."""
    if parameter.param_type_name != "option" or parameter.name not in _COMMON:
        return False
    return parameter.name not in ("json", "wide") or any(p.name == "output" for p in command.params)


def _table(title: str, parameters: list[Any], context: Any) -> Iterator[str]:
    yield f"| {title} | meaning |\n|---|---|\n"
    for parameter in parameters:
        names, text = (part.replace("|", "\\|") for part in parameter.get_help_record(context))
        yield f"| `{names}` | {_escaped(' '.join(text.removesuffix('[required]').split()))} |\n"


def _examples(epilog: str | None) -> Iterator[str]:
    found = _EXAMPLES.search(epilog or "")
    if found is not None:
        yield "\n" + "".join(f"    {line[2:]}\n" for line in found[1].splitlines())


def _text(help_text: str) -> str:
    """A help text with its paragraphs on one line each."""
    paragraphs = re.split(r"\n\s*\n", inspect.cleandoc(help_text))
    return "\n\n".join(_escaped(" ".join(paragraph.split())) for paragraph in paragraphs)


def _escaped(text: str) -> str:
    """The text, so that Markdown shows it as it is, but for code in backticks."""
    parts = re.split(r"(`[^`]*`)", text)
    parts[::2] = [re.sub(r"([*<])", r"\\\1", part) for part in parts[::2]]
    return "".join(parts)


if __name__ == "__main__":
    sys.stdout.write(reference())
