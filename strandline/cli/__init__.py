"""The command line. This module knows the commands by name and one line of help each, and imports only the one that
is called: `strandline --help` shall be there before the finger has left the key.

A node and its health check are started by machines: the one stays for months, the other is called every second, and for
neither is typer imported, unless they are called in a way that only typer can explain (`--help`, an unknown option).

Exit codes: 0 ok, 1 error, 2 wrong usage, 3 the cluster is not healthy (or the work was done and its verdict is bad), 130
interrupted by Ctrl-C (interrupts.py).
Tables are for people; `--json` has stable keys for programs. Results go to stdout, everything else to stderr.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from strandline.cli import interrupts


def main() -> None:
    """The console script: runs the command and turns every failure into one sentence and an exit code."""
    interrupts.install()
    interrupts.open_standard_streams()
    interrupts.leave(_exit_code(sys.argv[1:]))


def _exit_code(words: Sequence[str]) -> int:
    try:
        code = _run_plainly(words)
        if code is None:
            code = _run(words)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return interrupts.EXIT_CODE
    except Exception as e:
        if isinstance(e, BrokenPipeError) and (interrupts.is_closed(1) or interrupts.is_closed(2)):
            return 0  # the reader of our output has read enough (`| head`)
        from strandline.cli.common import explain

        return explain(e)


def _run(words: Sequence[str]) -> int:
    from strandline.cli.root import PipeBroke, app

    if "_STRANDLINE_COMPLETE" in os.environ:
        from strandline.cli import completion

        completion.listen()
    try:
        app(words, prog_name="strandline")
    except SystemExit as e:
        return e.code if isinstance(e.code, int) else 0
    except PipeBroke as e:
        raise e.error from None
    return 0


def _run_plainly(words: Sequence[str]) -> int | None:
    """The exit code of a command that needs no typer; None when typer has to look at it."""
    if words[:1] == ["health"]:
        from strandline.cli import probe

        question = probe.parse(words[1:])
        return None if question is None else probe.run(question)
    if words[:1] in (["broker"], ["controller"]):
        _listen_to_sigterm()
        from strandline import node

        arguments = node.parse(words[1:])
        return None if arguments is None or arguments.stop_with_parent else node.run(words[0], *arguments)
    return None


def _listen_to_sigterm() -> None:
    """A node in a container is process 1, which has no default actions: a SIGTERM that comes while it still imports would
    be lost, and `docker stop` would wait for its whole grace period."""
    import os
    import signal

    signal.signal(signal.SIGTERM, lambda number, frame: os._exit(0))
