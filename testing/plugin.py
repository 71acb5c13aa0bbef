"""pytest plugin: a cluster as a fixture, and its report when a test fails. The package registers it (`pytest11`).

    cluster            one per test, in the test's own event loop            @pytest.mark.strandline(brokers=5) changes it
    make_cluster       `await make_cluster(brokers=1)`: as many clusters as the test wants
    session_cluster    one shared by all tests that request it; all faults are ended before each test
    threaded_cluster   for tests that are not coroutines
    strandline_options arguments for all of these clusters; override it in a conftest.py

`@simulated` tests need none of these fixtures: each seed gets its own cluster. `--strandline-seed` replays a seed, and `-v`
reports how many seeds were played and how fast.

A cluster needs an event loop that runs while the test runs. pytest-asyncio gives each test a loop of some scope; `cluster` and
`make_cluster` use the loop of the test that requests them, for every scope and in strict and auto mode. Without pytest-asyncio,
`threaded_cluster` and `async with Cluster()` remain.

The plugin imports the kit only when a test requests one of the fixtures.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from strandline.testing.kit.cluster import Cluster
    from strandline.testing.kit.threaded import ThreadedCluster

MARK = "strandline"
SESSION = "session_cluster"
MARKER_HELP = (
    'strandline(brokers=3, controllers=1, files="memory"|"disk", processes=False, seed=None, **settings): '
    "what the cluster of this test is made with; settings are configuration keys with _ for ."
)
_LOOPS = "strandline.testing.loops"
SEED_VARIABLE = "STRANDLINE_SEED"
_SEED_BEFORE = pytest.StashKey["str | None"]()
TALLY = "strandline_simulated"
"""Name of the report property that holds the `Tally` of a @simulated test."""


def pytest_addoption(parser: pytest.Parser) -> None:
    help = "of tests that are @simulated, play this seed alone (or these: 3,17)"
    parser.getgroup("strandline").addoption("--strandline-seed", metavar="SEED", default=None, help=help)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER_HELP)
    seed = config.getoption("--strandline-seed", None)
    if seed is not None:
        config.stash[_SEED_BEFORE] = os.environ.get(SEED_VARIABLE)
        os.environ[SEED_VARIABLE] = seed
    if config.pluginmanager.hasplugin("asyncio"):
        try:
            loops = import_module(_LOOPS)
        except Exception:
            return  # An old pytest-asyncio: only tests that request a cluster fail, with a message.
        config.pluginmanager.register(loops, _LOOPS)


def pytest_unconfigure(config: pytest.Config) -> None:
    before = config.stash.get(_SEED_BEFORE, "unset")
    if before is None:
        os.environ.pop(SEED_VARIABLE, None)
    elif before != "unset":
        os.environ[SEED_VARIABLE] = before


# -- fixtures ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def strandline_options() -> Mapping[str, Any]:
    """Arguments of `Cluster` for all fixtures of this plugin; markers have precedence. Override it in your conftest.py."""
    return {}


@pytest.fixture
def cluster(request: pytest.FixtureRequest, strandline_options: Mapping[str, Any]) -> Iterator[Cluster]:
    """A started `Cluster` in this test's event loop: three brokers and one controller, unless a marker says otherwise."""
    from strandline.testing.kit.cluster import Cluster

    loop = _loop_of_test(request, "cluster")
    cluster = Cluster(**_options(request, strandline_options))
    loop.run_until_complete(cluster.start())
    yield cluster
    loop.run_until_complete(cluster.close())


@pytest.fixture
def make_cluster(
    request: pytest.FixtureRequest, strandline_options: Mapping[str, Any]
) -> Iterator[Callable[..., Awaitable[Cluster]]]:
    """`await make_cluster(brokers=1)` starts and returns a `Cluster`, which is closed at the end of the test."""
    from strandline.testing.kit.factory import ClusterFactory

    loop = _loop_of_test(request, "make_cluster")
    factory = ClusterFactory(_options(request, strandline_options))
    yield factory
    loop.run_until_complete(factory.close())


@pytest.fixture(scope="session")
def session_cluster(request: pytest.FixtureRequest, strandline_options: Mapping[str, Any]) -> Iterator[Cluster]:
    """One `Cluster` for all tests of the session that request it, in the session's event loop. Topics of earlier tests stay."""
    from strandline.testing.kit.cluster import Cluster

    _require_loops(request, SESSION)
    loop: AbstractEventLoop = request.getfixturevalue("strandline_session_loop")
    cluster = Cluster(**strandline_options)
    loop.run_until_complete(cluster.start())
    request.config.stash[_SESSION_CLUSTER] = cluster, loop
    yield cluster
    del request.config.stash[_SESSION_CLUSTER]
    loop.run_until_complete(cluster.close())


@pytest.fixture
def threaded_cluster(request: pytest.FixtureRequest, strandline_options: Mapping[str, Any]) -> Iterator[ThreadedCluster]:
    """A started `ThreadedCluster`, for tests without asyncio: the cluster runs on another thread, and its calls block."""
    from strandline.testing.kit.cluster import Cluster

    with Cluster.running_in_thread(**_options(request, strandline_options)) as cluster:
        yield cluster


_SESSION_CLUSTER = pytest.StashKey["tuple[Cluster, AbstractEventLoop]"]()


def _options(request: pytest.FixtureRequest, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The session's options, overridden by the arguments of markers; the marker nearest to the test wins."""
    options = dict(defaults)
    for marker in reversed(list(request.node.iter_markers(MARK))):
        if marker.args:
            pytest.fail(f"@pytest.mark.strandline takes keywords only: {MARKER_HELP}", pytrace=False)
        options.update(marker.kwargs)
    on_disk = options.get("files") == "disk" or options.get("processes")
    if on_disk and "folder" not in options:
        options["folder"] = request.getfixturevalue("tmp_path") / "cluster"
    return options


# -- event loops ------------------------------------------------------------------------------------------------------


def _loop_of_test(request: pytest.FixtureRequest, fixture: str) -> AbstractEventLoop:
    """The event loop that runs while the test runs."""
    if not _is_coroutine(request.node):
        pytest.fail(
            f"the fixture {fixture} lives in the test's event loop, and {request.node.name} is no coroutine: make it "
            "`async def`, or use the fixture threaded_cluster",
            pytrace=False,
        )
    _require_loops(request, fixture)
    loop: AbstractEventLoop = request.getfixturevalue(f"strandline_{_loop_scope(request.node)}_loop")
    return loop


def _require_loops(request: pytest.FixtureRequest, fixture: str) -> None:
    if not request.config.pluginmanager.hasplugin(_LOOPS):
        pytest.fail(
            f"the fixture {fixture} needs pytest-asyncio, 1.2 or newer (pip install 'pytest-asyncio>=1.2'); "
            "without it there are the fixture threaded_cluster and `async with Cluster()`",
            pytrace=False,
        )


def _is_coroutine(item: Any) -> bool:
    test = getattr(item, "obj", None)
    test = getattr(getattr(test, "hypothesis", None), "inner_test", test)
    return inspect.iscoroutinefunction(test)


def _loop_scope(item: pytest.Item) -> str:
    """The scope of the test's event loop, by the rules of pytest-asyncio."""
    marker = item.get_closest_marker("asyncio")
    named = None if marker is None else marker.kwargs.get("loop_scope") or marker.kwargs.get("scope")
    return str(named or item.config.getini("asyncio_default_test_loop_scope") or "function")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before a test that uses `session_cluster`: check that it runs in the session's loop, and end all faults."""
    if SESSION not in getattr(item, "fixturenames", ()):
        return
    has_loops = item.config.pluginmanager.hasplugin(_LOOPS)
    if has_loops and not (_is_coroutine(item) and _loop_scope(item) == "session"):
        pytest.fail(
            'session_cluster lives in the session\'s event loop: mark the test with @pytest.mark.asyncio(loop_scope="session")',
            pytrace=False,
        )
    known = item.config.stash.get(_SESSION_CLUSTER, None)
    if known is not None:
        shared, loop = known
        loop.run_until_complete(shared.make_whole())


# -- reports ----------------------------------------------------------------------------------------------------------


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Any:
    report: pytest.TestReport = yield
    tally = getattr(getattr(item, "function", None), "__strandline_tally__", None)
    if report.when == "call" and tally is not None:
        report.user_properties.append((TALLY, str(tally)))
    if report.failed and "strandline.testing.kit.cluster" in sys.modules:
        for number, text in enumerate(_reports(item), 1):
            report.sections.append((f"cluster {number}" if number > 1 else "cluster", text))
    return report


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """With -v: report per @simulated test how many seeds were played, how fast, and with which faults."""
    if config.get_verbosity() <= 0:
        return
    reports = [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]
    lines = [f"{r.nodeid}: {value}" for r in reports for name, value in r.user_properties if name == TALLY]
    if lines:
        terminalreporter.section("simulated")
        for line in lines:
            terminalreporter.line(line)


def _reports(item: pytest.Item) -> Iterator[str]:
    from strandline.testing.kit.cluster import Cluster
    from strandline.testing.kit.factory import ClusterFactory
    from strandline.testing.kit.threaded import ThreadedCluster

    found: dict[int, Any] = {}
    for value in dict(getattr(item, "funcargs", {})).values():
        for one in value.clusters if isinstance(value, ClusterFactory) else [value]:
            if isinstance(one, (Cluster, ThreadedCluster)):
                found[id(one)] = one  # The user's fixtures may return the same cluster again.
    for one in found.values():
        try:
            yield one.report()
        except Exception as e:
            yield f"no report: {e}"
