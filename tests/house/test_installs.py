"""`pip install .` and `pip install -e .` give users types, scenario files, and the names of a first program.

If packages are mapped one by one, setuptools writes import hooks for an editable install. Type checkers do not run them, so
they would see an empty package. Therefore strandline/ links to the other rooms, and src/ to strandline/. These tests check
both kinds of install with mypy --strict and pyright (basedpyright is pyright with a Node from PyPI, so nothing else must be
downloaded)."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from installed import PAGES, ROOT, Install, install, programs_of_pages

from strandline.testing import Cluster

PROGRAM = ROOT / "tests" / "house" / "users_program.py"
TYPES = ROOT / "tests" / "house" / "users_types.py"
CLI = "from strandline.cli import main; main()"
WRONG = """
from strandline import Producer, TopicPartition, nonsense
from strandline.client import Receipt

async def main() -> None:
    async with Producer(ack="all"), Producer() as producer:
        receipt: Receipt = await producer.send_and_wait("orders", b"1")
        place: TopicPartition = receipt.result().offset
"""
"""A misspelled name, a misspelled option, and two results of another type: in lines 2, 6, 7 and 8."""
WRONG_TYPES = """
import strandline.sync
from strandline import Consumer, ConsumerRecord, Producer

def handle(record: ConsumerRecord[bytes, int]) -> None: ...

async def main() -> None:
    async with Producer(key_serializer=str.encode) as producer:
        await producer.send("orders", b"1", key=b"alice")
        await producer.send("orders", "1", key="alice")
    with strandline.sync.Producer() as plain:
        plain.send("orders", "1")
    async with Consumer("orders", value_deserializer=bytes.decode) as consumer:
        async for record in consumer:
            print(record.value + 1, len(record.key))
        await consumer.run(handle)
    Consumer("orders", value_deserializer=str.encode)
    undecided: Producer[str, str] = Producer(bootstrap_servers="127.0.0.1:9092")
"""
"""A key, two values, a result, a handler and a deserializer of another type than the serializers say, and none for a str."""
WRONG_LINES = {"wrong.py": [2, 6, 7, 8], "wrong_types.py": [9, 10, 12, 15, 16, 17, 18]}


KINDS = ["build_wheel", "build_editable"]


@pytest.fixture(scope="module", params=KINDS)
def installed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Install:
    return install(request.param, tmp_path_factory.mktemp(request.param))


def mypy(installed: Install, folder: Path) -> tuple[list[tuple[str, int]], str]:
    """Run mypy on the programs in a folder; returns the errors as (file, line), and the whole output."""
    words = ["--strict", "--python-executable", str(installed.python), "--cache-dir", str(folder / "cache"), "--no-error-summary"]
    command = [sys.executable, "-m", "mypy", *words, *sorted(p.name for p in folder.glob("*.py"))]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    errors = [line.split(":")[:2] for line in done.stdout.splitlines() if ": error:" in line]
    return [(file, int(line)) for file, line in errors], done.stdout + done.stderr


def pyright(installed: Install, folder: Path) -> tuple[list[tuple[str, int]], str]:
    (folder / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict", "include": ["."]}')
    command = [sys.executable, "-m", "basedpyright", "--pythonpath", str(installed.python), "--outputjson"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    found = [d for d in json.loads(done.stdout)["generalDiagnostics"] if d["severity"] == "error"]
    errors = [(Path(d["file"]).name, d["range"]["start"]["line"] + 1) for d in found]
    return errors, "\n".join(f"{d['file']}:{d['range']['start']['line'] + 1}: {d['message']}" for d in found)


@pytest.mark.page
@pytest.mark.parametrize("checker", [mypy, pyright])
@pytest.mark.parametrize("installed", KINDS, indirect=True)
def test_type_checkers_see_the_types_of_an_installed_package(checker, installed: Install, tmp_path: Path) -> None:
    """A program written as in the documentation has no error under the strict settings, and mistakes in it are found."""
    if checker is pyright:
        pytest.importorskip("basedpyright", reason="basedpyright is not installed: pip install -e '.[dev]'")
    (tmp_path / "program.py").write_text(PROGRAM.read_text())
    for number, program in enumerate(programs_of_pages().values()):
        (tmp_path / f"program_{number}.py").write_text(program)
    (tmp_path / "types_of_program.py").write_text(TYPES.read_text())
    (tmp_path / "wrong.py").write_text(WRONG)
    (tmp_path / "wrong_types.py").write_text(WRONG_TYPES)
    errors, output = checker(installed, tmp_path)
    assert [e for e in errors if e[0] not in WRONG_LINES] == [], output
    assert {name: sorted({line for file, line in errors if file == name}) for name in WRONG_LINES} == WRONG_LINES, output


async def test_programs_of_the_pages_run_unchanged(cluster: Cluster, tmp_path: Path) -> None:
    """They run in a fixed order, because the page of the client creates the topic that README's program uses."""
    printed = {}
    assert tuple(programs_of_pages()) == PAGES
    for page, program in programs_of_pages().items():
        file = tmp_path / "program.py"
        file.write_text(program.replace("127.0.0.1:9092", cluster.bootstrap_servers))
        process = await asyncio.create_subprocess_exec(sys.executable, str(file), stdout=asyncio.subprocess.PIPE)
        async with asyncio.timeout(60):
            out, _ = await process.communicate()
        printed[page] = out.decode().splitlines()[-1]
        assert process.returncode == 0
    assert re.fullmatch(r"\d{13} b'alice' b'2 tea'", printed["docs/client.md"])
    assert re.fullmatch(r"\d 0 b'alice' b'2 tea'", printed["README.md"])


def test_chaos_list_finds_the_scenarios_outside_the_checkout(installed: Install, tmp_path: Path) -> None:
    done = installed.run("-c", CLI, "chaos", "list", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    scenarios = json.loads(done.stdout)["scenarios"]
    expected = sorted(file.name for file in (ROOT / "deploy" / "chaos").glob("*.toml"))
    assert [Path(scenario["file"]).name for scenario in scenarios] == expected
    assert all(str(ROOT) not in scenario["file"] for scenario in scenarios)


def test_a_scenario_of_the_package_is_found_by_its_name(installed: Install, tmp_path: Path) -> None:
    """No cluster starts, because the parameter is wrong; the error names the scenario's file."""
    done = installed.run("-c", CLI, "chaos", "run", "kill-leader", "--set", "nonsense=1", cwd=tmp_path)
    assert done.returncode == 2
    assert "kill-leader.toml" in done.stderr
    done = installed.run("-c", CLI, "chaos", "run", "kill-lead", cwd=tmp_path)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "did you mean 'kill-leader'?" in done.stderr


def test_names_of_a_first_program_are_at_top_level(installed: Install, tmp_path: Path) -> None:
    """The import of the package stays cheap: the names are loaded at their first use."""
    code = (
        "import sys, strandline; before = set(sys.modules); "
        "from strandline import NewTopic, TopicPartition, StrandlineError, UsageError, __version__; "
        "missing = [name for name in strandline.__all__ if not hasattr(strandline, name) or name not in dir(strandline)]; "
        "slow = {'asyncio', 'msgspec', 'importlib.metadata', 'strandline.client'} & before; "
        "print(__version__, missing, slow)"
    )
    done = installed.run("-c", code, cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("0.1.0 [] set()\n", "")
