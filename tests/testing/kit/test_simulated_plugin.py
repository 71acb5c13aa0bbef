"""`@simulated` under pytest: a plain test with the remaining arguments, a seed from the command line, and figures with -v."""

from __future__ import annotations

import os
import re
import textwrap
import warnings

import pytest

# Imported here, because a run of pytest in this process forgets its own imports.
import strandline.testing.kit.simulated.decorator
import strandline.testing.loops  # noqa: F401

pytest_plugins = ["pytester"]

HEAD = """
import asyncio
import os
import pytest
from strandline.testing import simulated
"""

WITHOUT = "-p no:cacheprovider -p no:hypothesispytest -p no:xdist"


def _run(pytester: pytest.Pytester, *arguments: str) -> str:
    """Run the inner pytest. The outer one turns warnings into errors, and has already imported modules that the inner one would
    rewrite."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pytest.PytestAssertRewriteWarning)
        return pytester.runpytest_inprocess(*arguments).stdout.str()


class Suite:
    def __init__(self, pytester: pytest.Pytester, ini: str = "") -> None:
        self._pytester = pytester
        lines = f"addopts = --strict-markers {WITHOUT}\n{ini}\nasyncio_default_fixture_loop_scope = function"
        lines += "\nfilterwarnings =\n  error::pytest.PytestWarning\n  ignore::pytest.PytestAssertRewriteWarning\n"
        (pytester.path / "pytest.ini").write_text(f"[pytest]\n{lines}")

    def run(self, code: str, *arguments: str) -> str:
        (self._pytester.path / "test_theirs.py").write_text(HEAD + textwrap.dedent(code))
        return _run(self._pytester, *arguments)


@pytest.fixture
def suite(pytester: pytest.Pytester) -> Suite:
    return Suite(pytester)


ARGUMENTS = """
    @pytest.fixture
    def names():
        return ["tea"]

    @pytest.mark.parametrize("count", [1, 2])
    @simulated(seeds=2, faults=None)
    async def test_handed_on(cluster, names, count, tmp_path):
        topic = await cluster.create_topic(names[0])
        async with cluster.producer() as producer:
            for n in range(count):
                await producer.send_and_wait(topic, b"%d" % n)
        assert len(await cluster.read_all(topic)) == count
        (tmp_path / "seed").write_text(str(cluster.seed))

    class TestOfAClass:
        @simulated(seeds=1, faults=None)
        async def test_method(self, cluster):
            assert isinstance(self, TestOfAClass)
"""


@pytest.mark.parametrize("mode", ["strict", "auto"])
def test_simulated_test_keeps_its_other_fixtures_and_parameters(pytester: pytest.Pytester, mode: str) -> None:
    out = Suite(pytester, f"asyncio_mode = {mode}").run(ARGUMENTS)
    assert "3 passed" in out, out


def test_it_needs_no_plugin_for_asyncio(pytester: pytest.Pytester) -> None:
    (pytester.path / "pytest.ini").write_text(f"[pytest]\naddopts = {WITHOUT} -p no:asyncio\n")
    (pytester.path / "test_theirs.py").write_text(HEAD + textwrap.dedent(ARGUMENTS))
    out = _run(pytester)
    assert "3 passed" in out, out


FAILS = """
    @simulated(seeds=[3, 4, 5], faults=None)
    async def test_even(cluster):
        assert cluster.seed % 2
        await asyncio.sleep(1)
"""


def test_failure_shows_its_lines_and_the_replay_command(suite: Suite) -> None:
    out = suite.run(FAILS)
    assert "1 failed" in out
    assert ">       assert cluster.seed % 2" in out
    assert "decorator.py" not in out
    assert "seed 4, at" in out
    assert "one before it passed" in out
    command = re.search(r"pytest (test_theirs.py::test_even) --strandline-seed (\d+)", out)
    assert command is not None, out
    again = suite.run(FAILS, command[1], "--strandline-seed", command[2])
    assert "1 failed" in again
    assert "1 passed" in suite.run(FAILS, "--strandline-seed", "5")


def test_seed_of_a_run_does_not_leak_into_the_next(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    suite.run(FAILS, "--strandline-seed", "5")
    assert "STRANDLINE_SEED" not in os.environ
    monkeypatch.setenv("STRANDLINE_SEED", "3,5")
    assert "1 passed" in suite.run(FAILS)
    suite.run(FAILS, "--strandline-seed", "4")
    assert os.environ["STRANDLINE_SEED"] == "3,5"


def test_number_and_speed_of_seeds_are_shown_only_with_v(suite: Suite) -> None:
    code = """
        @simulated(seeds=2, faults=["crash"])
        async def test_sleeps(cluster):
            await asyncio.sleep(3)
    """
    out = suite.run(code, "-v")
    assert re.search(
        r"test_theirs.py::test_sleeps: 2 seeds in [\d.]+ s, [\d.]+ seeds/s, \d+ s of virtual time; crash \d+", out
    ), out
    assert "seeds/s" not in suite.run(code, "-q")
    assert "seeds/s" not in suite.run(code)


@pytest.mark.slow
def test_skip_xfail_and_fail_are_pytests_own(suite: Suite) -> None:
    out = suite.run("""
        @simulated(seeds=2, faults=None)
        async def test_skips(cluster):
            pytest.skip("not here")

        @simulated(seeds=2, faults=None)
        async def test_xfails(cluster):
            pytest.xfail("known")

        @simulated(seeds=2, faults=None)
        async def test_fails(cluster):
            pytest.fail("as it says")

        @pytest.mark.xfail(strict=True, raises=ZeroDivisionError)
        @simulated(seeds=2, faults=None)
        async def test_raises(cluster):
            1 / 0
    """)
    assert "1 failed, 1 skipped, 2 xfailed" in out, out
    assert "as it says" in out


def test_a_seed_that_is_no_number_is_refused(suite: Suite) -> None:
    out = suite.run(FAILS, "--strandline-seed", "seven")
    assert "STRANDLINE_SEED must be a number" in out
