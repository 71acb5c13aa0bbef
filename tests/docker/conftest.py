"""The image, and a project of the compose file for each module that wants one; both are gone afterwards.

Names and ports are this session's own, so a cluster that somebody runs beside the tests is left alone."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest
from engine import BUILD_MAX_S, DOCKERFILE, REVISION, ROOT, docker, require_engine
from project import NODES, Project
from volumes import Volumes


@pytest.fixture(scope="session")
def image() -> Iterator[str]:
    """The image, built as the Dockerfile says."""
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
    """For one module: two clusters at once would be in each other's way."""
    project = Project(image)
    try:
        project.healthy_after_s = project.up()
        yield project
    finally:
        project.down("--volumes", "--remove-orphans")


@pytest.fixture
def project(_project: Project) -> Iterator[Project]:
    """Six healthy containers. Whatever a test leaves behind, the next one finds them so again."""
    yield _project
    for node in NODES:
        _project.heal(node)
    _project.wait_healthy()
