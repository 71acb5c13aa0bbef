"""The common part of the suites that run librdkafka's own tests in C and C++: builds the program, runs it, reads its output.

The crate rdkafka-sys bundles the source of librdkafka with its tests. They are built here with gcc, and those of each number run
in a process with a time limit. Tests against librdkafka's mock of a broker say nothing about ours and are left out.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import librdkafka_tools
import suite

CRATE, VERSION = "rdkafka-sys", "4.10.0+2.12.1"
REQUIREMENT = "STRANDLINE_REQUIRE_GCC"
KAFKA_VERSION = "4.1.0"
"""The version of Kafka that the tests assume."""
PARALLEL = 3
PROCESS_SECONDS = 150
FIRST = ("0103", "0061", "0102", "0093", "0045")
"""These take longest, so they begin first."""
IN_PARTS = {
    "0081": ("static void do_test_apis(", r"\b(do_test_(?!apis)\w+)\("),
    "0113": ("int main_0113_cooperative_rebalance(", r"\b([a-z]_\w+)\("),
}
"""Tests that run function by function (0081_admin/do_test_CreateTopics), because they are long, and because a failure would hide
the functions after it. Value: where the calls of the functions begin in the source, and their pattern."""
VARIATIONS = "u_multiple_subscription_changes", [f"use_rebalance_cb: 1, subscription_variation: {i}" for i in range(3)]
"""A function that takes five minutes, and the names of its sub-tests, which run instead of it."""
DID_NOT_RUN = suite.SKIPPED, "it did not run"

MANIFEST = f"""[package]
name = "source"
version = "0.0.0"
edition = "2021"
[lib]
path = "/dev/null"
[dependencies]
{CRATE} = {{ version = "={VERSION.partition("+")[0]}", default-features = false }}
"""

SETTINGS = {
    "default": {"num.partitions": 4},
    "noautocreate": {"num.partitions": 4, "auto.create.topics.enable": False},
}
"""Scenario of the tests -> settings of the cluster."""
COMMON_SETTINGS = {
    "http.listener": "",
    "default.replication.factor": 3,
    "min.insync.replicas": 1,
    # Tests rely on members that join together to be in the first generation together. (Kafka's default is 3 s.)
    "group.initial.rebalance.delay.ms": 1000,
}
WITHOUT_SECURITY = {
    "authorizer.class.name": "StandardAuthorizer",
    # No client is this user: the tests forbid operations to everyone, themselves included.
    "super.users": "User:admin",
    "allow.everyone.if.no.acl.found": True,
}

DECLARED = re.compile(r"\n    _TEST\((\d\w+),\s*([\w |]+)((?:[^()]|\([^()]*\))*)\)")
SCENARIO = re.compile(r'\.scenario = "(\w+)')
SUMMARY = re.compile(r"^\|.{0,8} (\d\w+) +\| +(\w+) \| +[\d.]+s .{0,5}\|(.*)$", re.MULTILINE)
BEGUN = re.compile(r"={5,} Running test (\d\w+) =")
GOOD = re.compile(r"={5,} Test (\d\w+) PASSED =")
COMPLAINT = re.compile(r"(?m)^Test assertion failed.*|^### Test .*\n.*|^.*Assertion .* failed.*")
COLOURS = re.compile(r"\x1b\[\d*m")
ENDS = {"PASSED": suite.PASSED, "FAILED": suite.FAILED, "SKIPPED": suite.SKIPPED}


@dataclass(frozen=True)
class Way:
    """How the tests connect to a cluster."""

    bootstrap: str
    name: str = "default"
    """The second part of the name of a run's folder, after the number of the test."""
    scenario: str = "default"
    conf: Mapping[str, str] = field(default_factory=dict)
    """Properties of each client."""
    environment: Mapping[str, str] = field(default_factory=dict)


def what_lacks() -> str | None:
    lacking = [tool for tool in ("gcc", "g++", "make", "cargo") if not _tool(tool)]
    if not Path("/usr/include/openssl/ssl.h").exists():
        lacking.append("libssl-dev")
    return f"there is no {', '.join(lacking)}" if lacking else None


def _tool(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:{Path.home() / '.cargo/bin'}")


def built() -> Path:
    """The folder of the source with the program `test-runner`, downloaded and built once."""
    with suite.in_cache(f"librdkafka-{VERSION}") as folder:
        source = folder / "vendor" / CRATE / "librdkafka"
        if not (source / "tests" / "test-runner").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            _build(folder, source)
    return source


def _build(folder: Path, source: Path) -> None:
    (folder / "Cargo.toml").write_text(MANIFEST)
    cargo = _tool("cargo")
    assert cargo
    _quietly([cargo, "vendor", "--quiet"], folder)
    options = ["--disable-lz4-ext", "--disable-curl", "--disable-gssapi", "--enable-devel", "--disable-syslog"]
    _quietly(["./configure", *options], source)
    jobs = f"-j{os.cpu_count() or 2}"
    _quietly(["make", jobs, "libs"], source)
    _quietly(["make", jobs, "test-runner"], source / "tests")


def with_curl(folder: Path) -> str:
    """A library path with another librdkafka for the program: that of confluent-kafka, which can fetch tokens over HTTP.

    Ours is built without curl, because few machines have curl's headers.
    """
    packaged = importlib.metadata.distribution("confluent-kafka").locate_file("confluent_kafka.libs")
    (library,) = Path(str(packaged)).glob("librdkafka-*.so.1")
    link = folder / "with-curl" / "librdkafka.so.1"
    link.parent.mkdir(exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(library)
    return f"{link.parent}:{built() / 'src-cpp'}:{library.parent}"


def _quietly(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed in {folder}: {done.stdout[-2000:]}{done.stderr[-2000:]}")


def tests_with_brokers(source: Path) -> Iterator[tuple[str, str]]:
    """The tests that need brokers: name, scenario."""
    for name, flags, more in DECLARED.findall((source / "tests" / "test.c").read_text()):
        if not re.search("LOCAL|MANUAL|KNOWN_ISSUE$", flags.strip()) and "mock" not in name:
            scenario = SCENARIO.search(more)
            for test in parts(source, name) if name[:4] in IN_PARTS else [name]:
                yield test, scenario[1] if scenario else "default"


def parts(source: Path, name: str) -> list[str]:
    number = name.partition("_")[0]
    text, (start, call) = source_of(source, name), IN_PARTS[number]
    functions = list(dict.fromkeys(re.findall(call, text[text.index(start) + len(start) :])))
    if VARIATIONS[0] in functions:
        functions.remove(VARIATIONS[0])
        functions += VARIATIONS[1]
    return [f"{name}/{function}" for function in functions]


def source_of(source: Path, name: str) -> str:
    """The text of the file with the test of this name."""
    (file,) = (source / "tests").glob(f"{name[:4]}-*.c*")
    return file.read_text()


def run_number(source: Path, folder: Path, number: str, way: Way) -> dict[str, tuple[str, str]]:
    """Run the tests whose names begin with a number, in one process; returns how each one ended that it ran.

    `number` may have a sub-test after it: 0081/do_test_CreateTopics.
    """
    number, _, part = number.partition("/")
    work = folder / f"{number}-{part or way.name}"
    work.mkdir()
    conf = {"bootstrap.servers": way.bootstrap, "test.topic.prefix": "rdk", "test.topic.random": "true", **way.conf}
    (work / "test.conf").write_text("".join(f"{key}={value}\n" for key, value in conf.items()))
    (work / "fixtures").symlink_to(source / "tests" / "fixtures")
    environment = {
        "TESTS": number,
        **({"SUBTESTS": part} if part else {}),
        "TEST_KAFKA_VERSION": KAFKA_VERSION,
        "LD_LIBRARY_PATH": f"{source / 'src'}:{source / 'src-cpp'}",
        "KAFKA_PATH": str(folder / "kafka"),
        "BROKERS": way.bootstrap,
        "TZ": "UTC",
        **way.environment,
    }
    log = work / "output.log"
    command = [str(source / "tests" / "test-runner"), "-p1", "-L", "-K", "-s", way.scenario]
    code = suite.run_process(command, log=log, seconds=PROCESS_SECONDS, cwd=work, env=environment)
    text = COLOURS.sub("", log.read_text(errors="replace"))
    ends = read_log(text, code)
    if part and part not in text.partition("Running test")[2]:
        ends = dict.fromkeys(ends, (suite.SKIPPED, "there is no such sub-test"))
    return {f"{name}/{part}" if part else name: end for name, end in ends.items()}


def read_log(text: str, code: int | None) -> dict[str, tuple[str, str]]:
    """Read how each test ended. If the process was aborted, there is no summary, and the test that was running has failed."""
    ends = {name: (ENDS.get(end, suite.FAILED), why.strip()[:400]) for name, end, why in SUMMARY.findall(text)}
    if ends:
        return {name: (end, why or _failure(text) if end == suite.FAILED else why) for name, (end, why) in ends.items()}
    how = f"did not end within {PROCESS_SECONDS} s" if code is None else f"ended with {code}"
    failed = {name: (suite.FAILED, f"{how}: {_failure(text)}") for name in BEGUN.findall(text)}
    return failed | dict.fromkeys(GOOD.findall(text), (suite.PASSED, ""))


def _number(name: str) -> str:
    number, (_, slash, part) = name.partition("_")[0], name.partition("/")
    return f"{number}{slash}{part}"


def _failure(text: str) -> str:
    """The first failure in a log. The assertion that ends the process is logged last."""
    found = COMPLAINT.search(text)
    return found[0].strip()[:400] if found else text[-400:]


def run_names(source: Path, folder: Path, names: Iterable[str], way: Way, end: float) -> dict[str, tuple[str, str]]:
    """Run tests in parallel, and say how each ended. A test that has not begun at `end` (of the monotonic clock) is skipped."""
    names = list(names)

    def one(number: str) -> dict[str, tuple[str, str]]:
        return {} if time.monotonic() > end else run_number(source, folder, number, way)

    numbers = list(dict.fromkeys(_number(name) for name in names))
    numbers.sort(key=lambda number: FIRST.index(number) if number in FIRST else len(FIRST))
    with ThreadPoolExecutor(PARALLEL) as pool:
        ended = dict(ended for part in pool.map(one, numbers) for ended in part.items())
    return {name: ended.get(name, DID_NOT_RUN) for name in names}


def run_scenarios(
    source: Path, known: Iterable[tuple[str, str]], *, seconds: float, environment: Mapping[str, str] | None = None
) -> suite.Results:
    """Run tests, each given with its scenario, on clusters without security."""
    known = list(known)
    results: dict[str, tuple[str, str]] = {}
    with suite.work_folder("librdkafka") as folder:
        librdkafka_tools.install(folder / "kafka")
        end = time.monotonic() + seconds
        for scenario, settings in SETTINGS.items():
            names = [name for name, its in known if its == scenario]
            if names:
                given = {**COMMON_SETTINGS, **WITHOUT_SECURITY, **settings}
                with suite.cluster(folder / f"cluster-{scenario}", settings=given) as cluster:
                    way = Way(cluster.bootstrap, scenario, scenario, environment=environment or {})
                    results |= run_names(source, folder, names, way, end)
                    results |= {f"{name}, {scenario}": value for name, value in cluster.result().items()}
    return results
