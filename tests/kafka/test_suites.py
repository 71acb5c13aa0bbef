"""The verdict on suites of other projects (`suites/suite.py`): the expected results and the actual ones; and the issuer of tokens
for one of them."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

SUITES = Path(__file__).parent / "suites"
sys.path += [str(SUITES), str(SUITES / "librdkafka_secure")]

import issuer  # noqa: E402
import suite  # noqa: E402

EXPECTED = suite.Expected(passes=["a", "b"], failures={"c": "no Kerberos here"})
GOOD = {"a": (suite.PASSED, ""), "b": (suite.PASSED, ""), "c": (suite.FAILED, "?")}


def test_a_suite_is_good_if_each_expected_pass_passes() -> None:
    verdict = suite.judge(EXPECTED, GOOD, None)
    assert verdict.good
    assert verdict.counts == {suite.PASSED: 2, suite.FAILED: 1, suite.SKIPPED: 0}


def test_an_expected_pass_that_fails_or_does_not_run_is_broken() -> None:
    for how in ((suite.FAILED, "boom"), (suite.SKIPPED, "no broker")):
        verdict = suite.judge(EXPECTED, {**GOOD, "a": how}, None)
        assert not verdict.good
        assert list(verdict.broken) == ["a"]
    assert list(suite.judge(EXPECTED, {}, None).broken) == ["a", "b"]
    assert list(suite.judge(EXPECTED, {}, ["b"]).broken) == ["b"], "only what was chosen has to run"


def test_a_failure_needs_a_reason() -> None:
    verdict = suite.judge(EXPECTED, {**GOOD, "d": (suite.FAILED, "boom")}, None)
    assert not verdict.good
    assert verdict.unexplained == {"d": "boom"}


def test_a_new_pass_is_reported_and_is_good() -> None:
    verdict = suite.judge(EXPECTED, {**GOOD, "c": (suite.PASSED, ""), "d": (suite.PASSED, "")}, None)
    assert verdict.good
    assert (verdict.new, verdict.mended) == (["d"], ["c"])


def test_what_is_recorded_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "expected.toml"
    file.write_text("# A comment stays.\n")
    expected = suite.Expected(passes=['x["\\xe4"]'], short=[], failures={"c": 'no "Kerberos"'})
    expected.write(file)
    assert suite.Expected.read(file) == expected
    assert file.read_text().startswith("# A comment stays.\n")


def test_each_failure_that_is_expected_has_a_reason() -> None:
    for file in sorted(SUITES.glob("*/expected.toml")):
        expected = suite.Expected.read(file)
        assert all(len(why) > 10 for why in expected.failures.values()), file
        assert set(expected.short) <= set(expected.passes), file


def test_issuer_of_tokens_refuses_a_wrong_secret(tmp_path: Path) -> None:
    """Otherwise the suite would pass with a client that sends no secret."""
    of_suite = issuer.Issuer(tmp_path, "user")
    asked = {"grant_type": "client_credentials", "scope": issuer.SCOPE}
    assert of_suite.answer("/token", asked, issuer.BASIC_AUTHORIZATION) is not None
    for authorization in (None, "Basic d3Jvbmc6d3Jvbmc="):
        assert of_suite.answer("/token", asked, authorization) is None


def test_two_suites_do_not_build_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a new machine two suites built librdkafka in one folder, and each removed the files of the other."""
    monkeypatch.setattr(suite, "CACHE", tmp_path / "cache")
    second_has_begun = threading.Event()

    def build() -> None:
        with suite.in_cache("library"):
            second_has_begun.set()

    with suite.in_cache("library") as folder:
        second = threading.Thread(target=build)
        second.start()
        assert folder == tmp_path / "cache" / "library"
        assert not second_has_begun.wait(0.2)
    second.join(10)
    assert second_has_begun.is_set()
