"""The content and the settings of the image."""

from __future__ import annotations

import json
import os
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from engine import BUILD_MAX_S, DOCKERFILE, REVISION, ROOT, docker, inspect, run

pytestmark = [pytest.mark.docker, pytest.mark.processes]

SIZE_OVER_BASE_MAX = 92_000_000
"""bytes. 25 MB are our own package with its compiled modules, 16 MB cryptography (OpenSSL), 13 MB uvloop, 8 MB aiohttp, 7 MB the
schemas of Kafka's messages (kio)."""
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())


def inside(image: str, *words: str, user: str = "0:0") -> str:
    """Run a command in the image, as root, so that it sees all files; returns its output."""
    return docker("run", "--rm", "--network", "none", "--user", user, "--entrypoint", words[0], image, *words[1:])


@pytest.fixture(scope="module")
def config(image: str) -> dict[str, Any]:
    return dict(inspect(image)["Config"])


def test_the_image_runs_as_a_fixed_user_without_privileges(image: str, config: dict[str, Any]) -> None:
    """The uid must never change: host directories belong to it, and Kubernetes checks runAsNonRoot by number."""
    assert config["User"] == "10001:10001"
    assert inside(image, "find", "/opt/strandline", "-perm", "/6000") == ""
    assert inside(image, "stat", "-c", "%u:%g %a", "/var/lib/strandline") == "10001:10001 750"


def test_the_image_has_version_and_revision_labels(config: dict[str, Any]) -> None:
    """With the labels a running image can be traced to its source."""
    labels = config["Labels"]
    assert labels["org.opencontainers.image.version"] == PYPROJECT["project"]["version"]
    assert labels["org.opencontainers.image.revision"] == REVISION
    assert labels["org.opencontainers.image.licenses"] == PYPROJECT["project"]["license"]


def test_a_build_with_another_version_than_pyproject_fails() -> None:
    """So the label cannot be wrong: its default is pyproject's version, and the build installs the wheel of that version."""
    words = [
        "docker",
        "build",
        "--force-rm",
        "--network",
        "host",
        "-f",
        str(DOCKERFILE),
        "--build-arg",
        "VERSION=9.9.9",
        str(ROOT),
    ]
    done = run(*words, check=False, timeout_s=BUILD_MAX_S)
    assert done.code != 0
    assert "strandline-9.9.9-py3-none-any.whl" in done.out + done.err


def test_the_image_has_stop_signal_and_health_check(config: dict[str, Any]) -> None:
    assert config["Entrypoint"] == ["strandline"]
    assert config["StopSignal"] == "SIGTERM"
    assert config["Healthcheck"]["Test"] == ["CMD", "strandline", "health"]
    assert set(config["Volumes"]) == {"/var/lib/strandline"}


def test_the_image_is_small(image: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The size is measured without the official base image: compiled Python packages."""
    (base,) = re.findall(r"^ARG BASE=(\S+)$", DOCKERFILE.read_text(), re.MULTILINE)
    if run("docker", "image", "inspect", base, check=False).code != 0:
        docker("pull", base, timeout_s=300)
    added = inspect(image)["Size"] - inspect(base)["Size"]
    with capsys.disabled():
        print(f"\nimage: {inspect(image)['Size'] / 1e6:.1f} MB, of which {added / 1e6:.1f} MB are ours")
    assert 0 < added <= SIZE_OVER_BASE_MAX


def test_the_image_has_no_compiler_and_no_build_files(image: str) -> None:
    """Missing software needs no update and does not help an attacker."""
    tools = "gcc cc c++ g++ clang ld as make cargo rustc"
    assert inside(image, "sh", "-c", f"for t in {tools}; do command -v $t; done; true") == ""
    assert (
        inside(
            image,
            "sh",
            "-c",
            "ls -d /source /wheels /tools /runs /builds /root/.cache /opt/strandline/bin/pip* 2>/dev/null; true",
        )
        == ""
    )
    assert inside(image, "find", "/opt/strandline", "-name", "tests", "-o", "-name", "*.pyx", "-o", "-name", "*.c") == ""
    assert inside(image, "find", "/opt/strandline", "-name", "pytest", "-o", "-name", "pip", "-o", "-name", "setuptools") == ""


def test_the_image_names_no_build_machine(image: str) -> None:
    """The image contains neither the path of the checkout nor the builder's name."""
    assert str(ROOT) not in json.dumps(inspect(image)) + docker("history", "--no-trunc", image)
    found = docker(
        "run", "--rm", "--user", "0:0", "--entrypoint", "grep", image, "-rlF", f"{ROOT}/", "/opt/strandline", check=False
    )
    assert found == ""


def test_the_image_has_every_module(image: str) -> None:
    """.dockerignore is a list of allowed folders, so a new package that it does not list would be missing only in the image."""
    src = ROOT / "src"
    files = [Path(folder, name) for folder, _, names in os.walk(src, followlinks=True) for name in names if name.endswith(".py")]
    expected = {".".join(file.relative_to(src).with_suffix("").parts) for file in files}
    expected = {name for name in expected if not name.startswith("strandline.pipeline.pyspark_strandline")}
    code = (
        "import pathlib, strandline; root = pathlib.Path(strandline.__file__).parent.parent; "
        "tops = ('strandline', 'pyspark_strandline', 'pyspark_strandline_segments'); "
        "ours = [p for top in tops for p in root.glob(top + '/**/*.py')]; "
        "print(*['.'.join(p.relative_to(root).with_suffix('').parts) for p in ours], sep='\\n')"
    )
    assert set(inside(image, "python", "-c", code).splitlines()) == expected


def test_the_image_reads_every_message_of_kafkas_clients(image: str) -> None:
    """The image has only a part of kio, and a schema is imported when its first message arrives."""
    code = (
        "from strandline.broker.kafka.apis import KAFKA_APIS; from strandline.broker.kafka.schemas import Schemas; "
        "s = Schemas(); "
        "pairs = [(a.key, v) for a in KAFKA_APIS.values() for v in range(a.min_version, a.max_version + 1)]; "
        "[(s.request(*pair), s.response(*pair)) for pair in pairs]; print(len(pairs) > 20)"
    )
    assert inside(image, "python", "-c", code) == "True"


def test_every_imported_module_is_compiled(image: str) -> None:
    """A read-only root stores no .pyc, so an uncompiled module would be compiled at every start and every health check. This
    includes the standard library, which the official base image has as source only."""
    code = (
        "import sys, os, strandline.node, strandline.broker.process.server, strandline.controller.server, strandline.cli.root, "
        "strandline.cli.health, strandline.client, strandline.broker.kafka.server, kio.index, uvloop, aiohttp.web, "
        "prometheus_client; "
        "print(*[m.__file__ for m in sys.modules.values() if getattr(m, '__cached__', None) and m.__name__ != '__main__' "
        "and not os.path.exists(m.__cached__)], sep='\\n')"
    )
    assert inside(image, "python", "-c", code) == ""


@pytest.mark.parametrize("command", ["up", "topic", "produce", "consume", "cluster", "health", "broker", "chaos", "bench"])
def test_the_command_line_works_on_a_read_only_root_without_any_capability(image: str, command: str) -> None:
    """The command needs no file that the image omits, and writes nothing outside the volume."""
    hardened = ["--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--network", "none"]
    assert "Usage: strandline" in docker("run", "--rm", *hardened, image, command, "--help")
