"""The image, and a compose project per module that needs one; both are removed afterwards.

Names and ports belong to this session, so the tests do not disturb another cluster on the machine."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest
from engine import BUILD_MAX_S, DOCKERFILE, REVISION, ROOT, docker, require_engine
from project import NODES, Project
from volumes import Volumes


@pytest.fixture(scope="session")
def image() -> Iterator[str]:
    """Build the image with the Dockerfile."""
    require_engine()
    tag = f"strandline:test-{secrets.token_hex(4)}"
    words = ["build", "--network", "host", "-f", str(DOCKERFILE), "-t", tag, "--build-arg", f"REVISION={REVISION}", str(ROOT)]
    docker(*words, timeout_s=BUILD_MAX_S)
    yield tag
    docker("rmi", "--no-prune", tag)


@pytest.fixture(scope="session")
def volumes(image: str) -> Volumes:
    return Volumes(image)


@pytest.fixture(scope="module")
def _project(image: str) -> Iterator[Project]:
    """One project per module and process of pytest."""
    project = Project(image)
    try:
        project.healthy_after_s = project.up()
        yield project
    finally:
        project.down("--volumes", "--remove-orphans")


@pytest.fixture
def project(_project: Project) -> Iterator[Project]:
    """Six healthy containers. After each test the fixture heals what the test left behind."""
    yield _project
    for node in NODES:
        _project.heal(node)
    _project.wait_healthy()
