"""The pytest plugin: its fixtures follow the test's event loop, its markers and options reach the cluster, a failed test
shows the cluster, and tests without a cluster do not load it.

Each test here runs pytest on a small suite of its own.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
import warnings
from importlib.metadata import entry_points

import pytest

# Imported here once, because a run of pytest in this process forgets its own imports.
import strandline.testing.kit.factory
import strandline.testing.kit.threaded
import strandline.testing.loops  # noqa: F401

pytest_plugins = ["pytester"]

HEAD = """
import asyncio
import pytest
import pytest_asyncio
from strandline.testing import caught_up, epoch, leader
"""


REWRITE = "ignore::pytest.PytestAssertRewriteWarning"


def _run(pytester: pytest.Pytester, *arguments: str) -> str:
    """Run the inner pytest. The outer one turns warnings into errors, and has already imported modules that the inner one would
    rewrite."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pytest.PytestAssertRewriteWarning)
        return pytester.runpytest_inprocess(*arguments).stdout.str()


class Suite:
    """A user's tests, and the pytest that runs them."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self._pytester = pytester
        self.folder = pytester.path
        self.ini("asyncio_mode = strict\nasyncio_default_fixture_loop_scope = function")

    def ini(self, text: str) -> None:
        plugins = "-p no:cacheprovider -p no:hypothesispytest -p no:xdist"
        lines = f"addopts = --strict-markers {plugins}\nfilterwarnings =\n  error::pytest.PytestWarning\n  {REWRITE}"
        (self.folder / "pytest.ini").write_text(f"[pytest]\n{lines}\n{text}\n")

    def run(self, code: str, *arguments: str) -> str:
        (self.folder / "test_theirs.py").write_text(HEAD + textwrap.dedent(code))
        return _run(self._pytester, "-q", *arguments)


@pytest.fixture
def suite(pytester: pytest.Pytester) -> Suite:
    return Suite(pytester)


def test_the_package_registers_the_plugin() -> None:
    names = {point.name: point.value for point in entry_points(group="pytest11")}
    assert names["strandline"] == "strandline.testing.plugin", "the package is installed without it: pip install -e ."


def test_plugin_loads_the_cluster_only_when_it_is_used(suite: Suite) -> None:
    """Every pytest of the environment imports the plugin, so it must not load more than itself."""
    code = """
        import sys

        def test_nothing_of_it_is_here():
            loaded = {name for name in sys.modules if name.startswith("strandline")}
            assert loaded == {"strandline", "strandline.testing", "strandline.testing.plugin", "strandline.testing.loops"}
            assert not {"structlog", "msgspec", "uvloop"} & set(sys.modules)
    """
    (suite.folder / "test_theirs.py").write_text(textwrap.dedent(code))
    command = [sys.executable, "-m", "pytest", "-q"]
    out = subprocess.run(command, cwd=suite.folder, capture_output=True, text=True, timeout=60, check=False).stdout
    assert "1 passed" in out, out


LOOPS = """
    @pytest.mark.asyncio(loop_scope="{scope}")
    async def test_{scope}(cluster, make_cluster):
        assert cluster.nodes.real is asyncio.get_running_loop()
        topic = await cluster.create_topic()
        async with cluster.producer() as producer:
            await producer.send_and_wait(topic, b"1")
        other = await make_cluster(brokers=1)
        assert other.nodes.real is asyncio.get_running_loop()
        await other.create_topic()
"""
SCOPES = ("function", "class", "module", "package", "session")


def test_cluster_uses_the_loop_of_its_test_in_every_scope(suite: Suite) -> None:
    out = suite.run("".join(LOOPS.format(scope=scope) for scope in SCOPES))
    assert "5 passed" in out, out


def test_cluster_uses_the_loop_of_its_test_in_auto_mode(suite: Suite) -> None:
    suite.ini("asyncio_mode = auto\nasyncio_default_test_loop_scope = session\nasyncio_default_fixture_loop_scope = session")
    out = suite.run("""
        @pytest.fixture
        async def topic(cluster):
            return await cluster.create_topic(partitions=2)

        async def test_with_a_fixture_of_theirs(cluster, topic):
            assert cluster.nodes.real is asyncio.get_running_loop()
            assert (await cluster.describe(topic, 1)).isr == {1, 2, 3}
    """)
    assert "1 passed" in out, out


def test_a_cluster_runs_in_uvloop(suite: Suite) -> None:
    (suite.folder / "conftest.py").write_text(
        textwrap.dedent("""
        import pytest
        import uvloop

        def pytest_asyncio_loop_factories(config, item):
            return {"uvloop": uvloop.new_event_loop}
    """)
    )
    out = suite.run("""
        import uvloop

        @pytest.mark.asyncio
        async def test_uvloop(cluster):
            assert isinstance(asyncio.get_running_loop(), uvloop.Loop)
            topic = await cluster.create_topic()
            async with cluster.producer() as producer:
                await producer.send_and_wait(topic, b"1")
                first = await cluster.leader_of(topic)
                await cluster.kill(first)
                await cluster.until(leader(topic) != first)
                with cluster.drop("Produce", times=1), cluster.delay("Produce", ms=20):
                    await producer.send_and_wait(topic, b"2")
                await cluster.start(first)
                await cluster.until(caught_up(topic))
                await cluster.pause(first)
                await cluster.resume(first)
                await cluster.restart(first)
            await cluster.assert_no_acked_loss()
    """)
    assert "1 passed" in out, out


def test_nearest_marker_or_option_configures_the_cluster(suite: Suite) -> None:
    (suite.folder / "conftest.py").write_text(
        textwrap.dedent("""
        import pytest

        @pytest.fixture(scope="session")
        def strandline_options():
            return {"brokers": 1, "controllers": 3}
    """)
    )
    out = suite.run("""
        pytestmark = [pytest.mark.asyncio, pytest.mark.strandline(brokers=2)]

        async def test_of_the_module(cluster):
            assert (len(cluster.brokers), len(cluster.controllers)) == (2, 3)

        @pytest.mark.strandline(controllers=1, files="disk", num_partitions=3)
        async def test_of_the_test(cluster, tmp_path):
            assert (len(cluster.brokers), len(cluster.controllers)) == (2, 1)
            topic = await cluster.create_topic(partitions=-1)
            assert (tmp_path / "cluster" / "broker-1").is_dir()
            assert (await cluster.describe(topic, 2)).partition == 2

        @pytest.mark.strandline(5)
        async def test_misuse(cluster):
            pass

        @pytest.mark.strandline(brokrs=5)
        async def test_a_typo(cluster):
            pass
    """)
    assert "2 passed, 2 errors" in out, out
    assert "takes keywords only" in out
    assert "unknown config key 'brokrs'" in out


def test_tests_that_share_a_cluster_find_it_whole(suite: Suite) -> None:
    out = suite.run("""
        pytestmark = pytest.mark.asyncio(loop_scope="session")
        seen = []

        async def test_one_breaks_it(session_cluster):
            seen.append(session_cluster)
            await session_cluster.create_topic("kept")
            await session_cluster.kill(1)
            await session_cluster.pause(2)
            session_cluster.isolate(3)

        async def test_the_next_finds_it_whole(session_cluster):
            assert seen == [session_cluster]
            assert session_cluster.faults == []
            assert {session_cluster.node(n).state for n in (1, 2, 3, 101)} == {"running"}
            await session_cluster.until(caught_up("kept"))

        @pytest.mark.asyncio(loop_scope="function")
        async def test_in_another_loop_it_would_stand_still(session_cluster):
            pass
    """)
    assert "2 passed, 1 error" in out, out
    assert "lives in the session's event loop" in out


def test_plain_test_gets_a_cluster_on_a_thread(suite: Suite) -> None:
    out = suite.run("""
        @pytest.mark.strandline(brokers=1)
        def test_plain(threaded_cluster):
            threaded_cluster.create_topic("t")
            assert threaded_cluster.send("t", b"1")[0].offset == 0

        def test_with_the_wrong_fixture(cluster):
            pass
    """)
    assert "1 passed, 1 error" in out, out
    assert "test_with_the_wrong_fixture is no coroutine" in out


def test_without_pytest_asyncio_only_the_threaded_cluster_works(suite: Suite) -> None:
    suite.ini("")
    out = suite.run(
        """
        def test_plain(threaded_cluster):
            threaded_cluster.create_topic("t")

        async def test_in_a_loop(cluster):
            pass
        """,
        "-p",
        "no:asyncio",
    )
    assert "1 passed" in out, out
    assert "the fixture cluster needs pytest-asyncio" in out


def test_an_old_pytest_asyncio_breaks_nothing(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fixtures of an old pytest-asyncio have no loop scope, so importing ours fails. Suites without a cluster must not
    notice."""
    monkeypatch.setitem(sys.modules, "strandline.testing.loops", None)  # type: ignore[arg-type]
    out = suite.run("""
        @pytest.mark.asyncio
        async def test_of_theirs():
            pass

        @pytest.mark.asyncio
        async def test_with_a_cluster(cluster):
            pass
    """)
    assert "1 passed, 1 error" in out, out
    assert "needs pytest-asyncio, 1.2 or newer" in out


def test_a_failed_test_shows_the_cluster(suite: Suite) -> None:
    out = suite.run("""
        pytestmark = pytest.mark.asyncio

        async def test_waits_in_vain(cluster):
            await cluster.create_topic("orders", replicas=[[1, 2, 3]])
            await cluster.kill(1)
            cluster.isolate_controller(2)
            await cluster.until(epoch("orders") == 9, within_s=0.3)

        @pytest_asyncio.fixture
        async def shop(make_cluster):
            cluster = await make_cluster(brokers=1)
            await cluster.create_topic("shop")
            return cluster

        async def test_fails_behind_a_fixture_of_theirs(shop):
            assert 1 == 2

    """)
    out += suite.run("""
        def test_plain(threaded_cluster):
            threaded_cluster.create_topic("plain")
            assert 1 == 2
    """)
    assert ("2 failed" in out, "1 failed" in out) == (True, True), out
    assert "condition not met within 0.3 s: epoch('orders', 0) == 9" in out
    assert "last seen: epoch('orders', 0) is" in out
    assert out.count("- cluster -") == 3
    for line in (
        "killed",
        "fault: cut link: 2 - 101",
        "orders-0: leader",
        "broker.fencing",
        "shop-0: leader 1",
        "plain-0: ",
    ):
        assert line in out, (line, out)
    assert "waiting.py" not in out, "the traceback ends in the user's test"


def test_a_failure_inside_async_with_carries_the_report(suite: Suite) -> None:
    out = suite.run("""
        from strandline.testing import Cluster

        @pytest.mark.asyncio
        async def test_by_hand():
            async with Cluster(brokers=1) as cluster:
                await cluster.create_topic("orders")
                assert 1 == 2
    """)
    assert "orders-0: leader 1" in out, out


def test_the_names_for_users_are_all_there() -> None:
    import strandline.testing as public

    for name in public.__all__:
        assert getattr(public, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'leadr'"):
        _ = public.leadr


def test_the_kit_does_not_import_pytest() -> None:
    """The kit is for tests with any framework."""
    code = "import sys, strandline.testing as t; [getattr(t, n) for n in t.__all__]; sys.exit('pytest' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
