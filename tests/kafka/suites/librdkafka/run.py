"""librdkafka's own tests in C and C++, those that need a broker.

The crate rdkafka-sys bundles the source of librdkafka with its tests. They are built here with gcc, and each runs in a process
of its own with a time limit. Tests against librdkafka's mock of a broker say nothing about ours and are left out.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent)]

import suite  # noqa: E402

CRATE, VERSION = "rdkafka-sys", "4.10.0+2.12.1"
REQUIREMENT = "STRANDLINE_REQUIRE_GCC"
KAFKA_VERSION = "4.1.0"
"""What the tests are told that the brokers are."""
PARALLEL = 3
TEST_SECONDS = 100
ALL_SECONDS = 600
"""A test that has not begun by then does not run."""

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
COMMON_SETTINGS = {"http.listener": "", "default.replication.factor": 3, "group.initial.rebalance.delay.ms": 0}

DECLARED = re.compile(r"\n    _TEST\((\d\w+),\s*([\w |]+)((?:[^()]|\([^()]*\))*)\)")
SCENARIO = re.compile(r'\.scenario = "(\w+)')
SUMMARY = re.compile(r"^\|.{0,8} (\d\w+) +\| +(\w+) \| +[\d.]+s .{0,5}\|(.*)$", re.MULTILINE)
COMPLAINT = re.compile(r"(?m)^Test assertion failed.*|^### Test .*\n.*|^.*Assertion .* failed.*")
COLOURS = re.compile(r"\x1b\[\d*m")
ENDS = {"PASSED": suite.PASSED, "FAILED": suite.FAILED, "SKIPPED": suite.SKIPPED}


def what_lacks() -> str | None:
    lacking = [tool for tool in ("gcc", "g++", "make", "cargo") if not _tool(tool)]
    if not Path("/usr/include/openssl/ssl.h").exists():
        lacking.append("libssl-dev")
    return f"there is no {', '.join(lacking)}" if lacking else None


def _tool(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:{Path.home() / '.cargo/bin'}")


def built() -> Path:
    """The folder of the source with the program `test-runner`, downloaded and built once."""
    folder = suite.CACHE / f"librdkafka-{VERSION}"
    source = folder / "vendor" / CRATE / "librdkafka"
    if not (source / "tests" / "test-runner").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "Cargo.toml").write_text(MANIFEST)
        cargo = _tool("cargo")
        assert cargo
        _quietly([cargo, "vendor", "--quiet"], folder)
        options = ["--disable-lz4-ext", "--disable-curl", "--disable-gssapi", "--enable-devel", "--disable-syslog"]
        _quietly(["./configure", *options], source)
        jobs = f"-j{os.cpu_count() or 2}"
        _quietly(["make", jobs, "libs"], source)
        _quietly(["make", jobs, "test-runner"], source / "tests")
    return source


def _quietly(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed in {folder}: {done.stdout[-2000:]}{done.stderr[-2000:]}")


def tests_with_brokers(source: Path) -> Iterator[tuple[str, str]]:
    """Test, scenario."""
    for name, flags, more in DECLARED.findall((source / "tests" / "test.c").read_text()):
        if not re.search("LOCAL|MANUAL|KNOWN_ISSUE$", flags.strip()) and "mock" not in name:
            scenario = SCENARIO.search(more)
            yield name, scenario[1] if scenario else "default"


def run_test(source: Path, folder: Path, test: str, scenario: str, bootstrap: str) -> tuple[str, str]:
    work = folder / test
    work.mkdir()
    (work / "test.conf").write_text(f"bootstrap.servers={bootstrap}\ntest.topic.prefix=rdk\ntest.topic.random=true\n")
    (work / "fixtures").symlink_to(source / "tests" / "fixtures")
    libraries = f"{source / 'src'}:{source / 'src-cpp'}"
    environment = {"TESTS": test, "TEST_KAFKA_VERSION": KAFKA_VERSION, "LD_LIBRARY_PATH": libraries, "TZ": "UTC"}
    log = work / "output.log"
    command = [str(source / "tests" / "test-runner"), "-p1", "-L", "-K", "-s", scenario]
    code = suite.run_process(command, log=log, seconds=TEST_SECONDS, cwd=work, env=environment)
    text = COLOURS.sub("", log.read_text(errors="replace"))
    ends = {name: (ENDS.get(end, suite.FAILED), why.strip()[:400]) for name, end, why in SUMMARY.findall(text)}
    if test in ends:
        return ends[test]
    return suite.FAILED, f"did not end within {TEST_SECONDS} s" if code is None else f"ended with {code}: {_failure(text)}"


def _failure(text: str) -> str:
    """The first complaint in a log. The assertion that ends the process comes last."""
    found = COMPLAINT.search(text)
    return found[0].strip()[:400] if found else text[-400:]


def run(tests: list[str]) -> suite.Results:
    source = built()
    chosen = [(test, scenario) for test, scenario in tests_with_brokers(source) if not tests or test in tests]
    results: dict[str, tuple[str, str]] = {}
    with suite.work_folder("librdkafka") as folder:
        end = time.monotonic() + ALL_SECONDS
        for scenario, settings in SETTINGS.items():
            names = [test for test, its in chosen if its == scenario]
            if not names:
                continue
            with ExitStack() as stack:
                cluster = stack.enter_context(
                    suite.cluster(folder / f"cluster-{scenario}", settings={**COMMON_SETTINGS, **settings})
                )
                pool = stack.enter_context(ThreadPoolExecutor(PARALLEL))

                def one(test: str, scenario: str = scenario, bootstrap: str = cluster.bootstrap) -> tuple[str, str]:
                    if time.monotonic() > end:
                        return suite.SKIPPED, "there was no time left"
                    return run_test(source, folder, test, scenario, bootstrap)

                results |= dict(zip(names, pool.map(one, names), strict=True))
                results |= {f"{name}, {scenario}": value for name, value in cluster.result().items()}
    return results


if __name__ == "__main__":
    sys.exit(suite.main(HERE, run, missing=what_lacks(), requirement=REQUIREMENT))
