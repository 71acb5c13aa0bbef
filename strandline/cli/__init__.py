"""The command line. A command's module is imported only when the command is called, so that `strandline --help` is fast;
the names and one line of help each are in commands.py.

A node runs for months, and a container calls the health check every second: typer is not imported for either of them,
unless only typer can handle the options (`--help`, an unknown option).

Exit codes: 0 success; 1 error, or a part of the answer is missing; 2 wrong usage; 3 the cluster is not healthy, or the
verdict of the command is bad; 130 interrupted by Ctrl-C (interrupts.py).
`-o` chooses the form of a result (output.py); the keys of JSON and YAML are stable. Results go to stdout, everything else to
stderr.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from strandline.cli import interrupts


def main() -> None:
    """The console script: run the command, print one sentence for an error, and exit with one of the exit codes in the
    module's docstring."""
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
            return 0  # the reader of the output has closed the pipe (`| head`)
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
    """Run a command that needs no typer and return its exit code; None if typer has to parse the words."""
    if words[:1] == ["health"]:
        from strandline.cli import probe

        question = probe.parse(words[1:])
        return None if question is None else probe.run(question)
    if words[:1] in (["broker"], ["controller"]) and all(word.startswith("-") for word in words[1:2]):
        _listen_to_sigterm()
        from strandline import node

        arguments = node.parse(words[1:])
        return None if arguments is None or arguments.stop_with_parent else node.run(words[0], *arguments)
    return None


def _listen_to_sigterm() -> None:
    """Handle SIGTERM during the imports. A node in a container is process 1, for which the kernel has no default action:
    the signal would be lost, and `docker stop` would wait for its whole grace period."""
    import os
    import signal

    signal.signal(signal.SIGTERM, lambda number, frame: os._exit(0))
