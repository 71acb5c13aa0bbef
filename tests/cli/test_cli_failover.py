"""The part of docs/failover.md that needs no Docker: each command runs against real processes and prints what the page shows.

    python tests/cli/test_cli_failover.py        write the output into the page

`tests/docker/tutorial.py` says what must agree and what may differ from run to run.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_world import COMMAND, ENVIRONMENT
from tutorial import Step, shape, steps_of, with_outputs

from strandline.local_cluster import free_port_range

PAGE = Path(__file__).parents[2] / "docs" / "failover.md"
FENCE = "```console up"
LIMIT_S = 200
"""A minute on an idle machine; the tests share theirs."""
END = "-- end of command --"

pytestmark = pytest.mark.processes


def run_page(page: str, folder: Path) -> Iterator[tuple[Step, list[str]]]:
    """Run each command and yield it with its output; no process is left afterwards."""
    runtime = folder / "runtime"  # hides the other clusters of this user from the page's commands
    runtime.mkdir()
    base = free_port_range(15)
    ports = {str(9092 + i): str(base + i) for i in range(3)}
    # The producer of step 5 is defined once on the page, for both ways.
    steps = [s for s in steps_of(page) if s.command.startswith("cat > /tmp/send.py")] + list(steps_of(page, FENCE))
    script = "".join(f"{{\n{as_here(step.command, folder, ports, base)}\n}} 2>&1 < /dev/null\necho '{END}'\n" for step in steps)
    environment = ENVIRONMENT | {
        "PATH": f"{Path(COMMAND[0]).parent}:{os.environ['PATH']}",
        "COLUMNS": "120",
        "XDG_RUNTIME_DIR": str(runtime),
    }
    printed = folder / "printed"
    with printed.open("w") as out_file:
        words = ["bash", "--norc", "--noprofile", "-c", script]
        bash = subprocess.Popen(words, stdout=out_file, cwd=folder, env=environment, start_new_session=True)
    try:
        bash.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"the page took longer than {LIMIT_S} s; it printed: {printed.read_text()}") from None
    finally:
        if bash.poll() is None:
            os.killpg(bash.pid, signal.SIGKILL)  # the nodes end with their `up`
            bash.wait()
    out = printed.read_text()
    for theirs, ours in ports.items():
        out = out.replace(f":{ours}", f":{theirs}")
    parts = out.replace(str(folder), "").split(f"{END}\n")
    assert len(parts) == len(steps) + 1, out
    yield from ((step, part.strip("\n").splitlines()) for step, part in zip(steps[1:], parts[1:], strict=False))


def as_here(command: str, folder: Path, ports: dict[str, str], base: int) -> str:
    for theirs, ours in ports.items():
        command = command.replace(f":{theirs}", f":{ours}")
    return command.replace("strandline up ", f"strandline up --base-port {base} ").replace("/tmp/send.py", f"{folder}/send.py")


def shapes(step: Step, lines: list[str]) -> list[str]:
    """Replace the parts of an output that differ per run, process ids included."""
    return [re.sub(r"pid \d+", "pid <n>", line) for line in shape(step.command, lines)]


@pytest.mark.slow
def test_commands_without_docker_print_what_the_page_shows(tmp_path: Path) -> None:
    """Slow, because `make test-docker` runs the same steps in containers."""
    differs = [
        f"{PAGE.name}:{step.line}: $ {step.command}\n  the page: {shapes(step, step.shown)}\n  printed: {shapes(step, lines)}"
        for step, lines in run_page(PAGE.read_text(), tmp_path)
        if shapes(step, lines) != shapes(step, step.shown)
    ]
    assert not differs, "\n".join(differs)


def main() -> None:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        printed = {step.line: [line.rstrip() for line in lines] for step, lines in run_page(PAGE.read_text(), Path(folder))}
    PAGE.write_text(with_outputs(PAGE.read_text(), printed, FENCE))


if __name__ == "__main__":
    sys.exit(main())
