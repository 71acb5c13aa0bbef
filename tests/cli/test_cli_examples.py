"""Every command's help ends with an example that the command itself accepts, and the shell can complete the commands."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from cli_world import COMMAND, ENVIRONMENT, Up, run

from strandline.cli.root import app


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield every command that is no group, or that does something without a command of the group, with its words."""
    if not hasattr(command, "list_commands"):
        yield " ".join(path), command
        return
    if command.invoke_without_command and path:
        yield " ".join(path), command
    for name in command.list_commands(None):
        yield from leaves(command.get_command(None, name), (*path, name))


LEAVES = dict(leaves(typer.main.get_command(app)))


def help_of(path: str) -> str:
    command = LEAVES[path]
    return str(command.get_help(typer.Context(command, info_name=f"strandline {path}", terminal_width=80)))


def test_every_command_is_found() -> None:
    assert {"up", "node kill", "topic create", "produce", "pipeline lake", "config describe", "broker"} <= set(LEAVES)


@pytest.mark.parametrize("path", LEAVES)
def test_every_help_fits_on_80_columns(path: str) -> None:
    """A narrow terminal would break an example in the middle of a word, so that it could not be copied."""
    assert [line for line in help_of(path).splitlines() if len(line) > 80] == []


@pytest.mark.parametrize("path", LEAVES)
def test_every_help_has_an_example_that_the_command_accepts(path: str) -> None:
    """The examples of all commands are parsed, but not run."""
    _, mark, examples = help_of(path).partition("\n  Example")
    assert mark, f"strandline {path} --help has no example"
    commands = [line.strip() for line in examples.splitlines()[1:] if line.strip()]
    assert commands
    own = [line for line in commands if f"strandline {path}" in line]
    assert own, f"no example of {path} calls {path}"
    for line in own:
        # Up to a pipe, a redirection, the end of $(...), or a remark behind a wide gap.
        words = re.split(r" \| | [<>] |\)|\s{2,}", line.split(f"strandline {path}", 1)[1])[0]
        LEAVES[path].make_context(path, shlex.split(words))


@pytest.mark.parametrize("path", LEAVES)
def test_no_help_shows_the_name_of_a_python_type(path: str) -> None:
    text = help_of(path)
    assert not [word for word in ("<int", "<str", "<float", "<path", "<list", "INTEGER", "]...]...") if word in text]


@pytest.mark.parametrize(("words", "expected"), [("strandline to", "topic"), ("strandline topic des", "describe")])
def test_bash_completes_commands(words: str, expected: str) -> None:
    environment = {"_STRANDLINE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    assert expected in run(env=environment).out.split()


@pytest.mark.processes
def test_names_of_the_cluster_are_completed(up: Up, tmp_path: Path) -> None:
    """Topics and groups of the cluster that the command would talk to, and contexts."""
    environment = {"XDG_CONFIG_HOME": str(tmp_path), "_STRANDLINE_COMPLETE": "complete_bash"}
    assert run("topic", "create", "completed", "-b", up.bootstrap).code == 0
    assert run("group", "seek", "completers", "--to", "latest", "-t", "completed", "--yes", "-b", up.bootstrap).code == 0
    assert run("context", "add", "complex", up.bootstrap, env={"XDG_CONFIG_HOME": str(tmp_path)}).code == 0
    for words, expected in (
        ("strandline topic offsets complet", "completed"),
        ("strandline consume -t complet", "completed"),
        ("strandline group lag comp", "completers"),
        ("strandline topic list --context comp", "complex"),
    ):
        found = run(env={**environment, "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))})
        assert (found.out.split(), found.err) == ([expected], ""), words


def test_an_unreachable_cluster_completes_nothing() -> None:
    words = "strandline topic offsets -b 127.0.0.1:1 x"
    found = run(env={"_STRANDLINE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": "5"})
    assert (found.out.strip(), found.err) == ("", "")


def test_bash_accepts_the_script_and_uses_it() -> None:
    """Bash runs the function that the script defines, and it finds the completions."""
    script = 'eval "$(strandline completion bash)"; COMP_WORDS=(strandline no); COMP_CWORD=1; '
    script += 'f=$(complete -p strandline | sed "s/.*-F \\([^ ]*\\).*/\\1/"); $f strandline; echo "${COMPREPLY[@]}"'
    environment = ENVIRONMENT | {"PATH": f"{COMMAND[0].rpartition('/')[0]}:{ENVIRONMENT['PATH']}"}
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=environment, timeout=30, check=False)
    assert done.stdout.split() == ["node"], done.stderr


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_have_a_script(shell: str) -> None:
    outcome = run("completion", shell)
    assert outcome.code == 0
    assert "_STRANDLINE_COMPLETE" in outcome.out
