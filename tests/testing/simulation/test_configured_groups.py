"""Groups whose configuration changes in random runs, and the judge of it (I50)."""

from __future__ import annotations

from itertools import islice
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_nemesis import quiet

from strandline.broker.groups.config import GroupConfig
from strandline.broker.groups.group_config_manager import GroupConfigManager
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.records import ConfigRecord
from strandline.protocol.messages.admin import RESOURCE_GROUP
from strandline.testing.simulation.cluster.groups.configurer import ASSIGNMENT, INTERVAL, SESSION, Configurer
from strandline.testing.simulation.group_plans import CONFIGURES, draw_configured, narrower
from strandline.testing.simulation.invariants.group_sessions import settings_of
from strandline.testing.simulation.options import Options, draw_options, with_groups
from strandline.testing.simulation.runs.run import run_seed

SEEDS = range(300)
RUNS_MAX = 10


class Always(Random):
    """A generator with which a run has every feature that only a share of the runs has."""

    def random(self) -> float:
        return 0.0


def configured(seed: int, *, narrow: tuple[int, ...] = ()) -> Options:
    """A run with groups whose configuration changes, and with no faults but those of groups."""
    options = with_groups(quiet(seed), Random(seed))
    drawn = draw_configured(Always(seed), options.settings, options.brokers)
    assert drawn is not None
    keys, _ = drawn
    return options.replaced(
        settings=options.settings | keys,
        controller_settings=options.controller_settings | keys,
        group_work=(CONFIGURES,),
        narrow_bounds=narrow,
    )


@pytest.mark.parametrize("narrow", [(), (1,)], ids=["one file", "narrower bounds of a broker"])
def test_groups_go_on_while_their_configuration_changes(monkeypatch: pytest.MonkeyPatch, narrow: tuple[int, ...]) -> None:
    changes: list[Any] = []
    alter = Configurer._alter

    async def noted(self: Configurer, admin: Any, group: str, change: Any) -> None:
        await alter(self, admin, group, change)
        changes.append(change)

    monkeypatch.setattr(Configurer, "_alter", noted)
    report = run_seed(2, options=configured(2, narrow=narrow))
    assert report.verdict == "ok", str(report)
    assert len(changes) > 3


def test_i50_target_that_is_computed_too_soon_is_noticed() -> None:
    """No story finds it, because none has a group whose target changes twice within its interval."""
    configured_ones = (seed for seed in SEEDS if CONFIGURES in draw_options(seed).group_work)
    for seed in islice(configured_ones, RUNS_MAX):
        report = run_seed(seed, mutation="M119")
        if not report.good:
            assert report.violations[0]["invariant"] == "I50"
            assert "computes two targets within" in report.violations[0]["text"]
            return
    pytest.fail(f"M119 was not noticed in {RUNS_MAX} runs")


def test_i50_change_that_is_acknowledged_and_not_committed_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(*_: Any, **__: Any) -> list[str]:
        return []

    monkeypatch.setattr("strandline.client.admin.admin.Admin.alter_configs", nothing)
    report = run_seed(2, options=configured(2))
    assert not report.good
    assert "is acknowledged, and not committed" in str(report)


@given(
    st.dictionaries(st.sampled_from((SESSION, INTERVAL, ASSIGNMENT)), st.integers(0, 80_000)),
    st.integers(1, 9000),
    st.integers(9000, 60_000),
)
def test_judge_and_product_agree_about_what_is_in_effect(values: dict[str, int], smallest: int, largest: int) -> None:
    """Both compute it from the same records, each in its own way."""
    config = GroupConfig(group_consumer_min_session_timeout_ms=smallest, group_consumer_max_session_timeout_ms=largest)
    records = [ConfigRecord(RESOURCE_GROUP, "g", key, str(max(1, value))) for key, value in values.items()]
    image = MetadataImage.empty()
    delta = image.apply(records, len(records), 1)
    manager = GroupConfigManager(config)
    manager.apply_delta(delta, 0.0)
    assert settings_of(delta.image.config(RESOURCE_GROUP, "g"), config) == manager.of("g")


def test_configured_groups_are_drawn_apart() -> None:
    drawn = [draw_options(seed) for seed in SEEDS]
    changing = [options for options in drawn if CONFIGURES in options.group_work]
    assert 0.05 < len(changing) / len(drawn) < 0.15
    assert all(options.members for options in changing)
    for options in changing:
        bounds = narrower(options.settings)
        assert all(options.settings[key] >= value for key, value in bounds.items())
    assert any(options.narrow_bounds for options in changing)
    assert not any(options.narrow_bounds for options in drawn if CONFIGURES not in options.group_work)
