"""What a seed draws describes the whole run, and can be written, read, and changed."""

from __future__ import annotations

import json

from strandline.broker.config import BrokerConfig
from strandline.controller.config import ControllerConfig
from strandline.testing.simulation.group_plans import CLASSIC, GROUP_FAULTS, NEWER
from strandline.testing.simulation.nemesis import KINDS
from strandline.testing.simulation.options import DIRECTORY_FAULTS, DOUBLE_FAULTS, FAULTS, RECOVER, Options, draw_options
from strandline.testing.simulation.transaction_plans import TRANSACTION_FAULTS

SEEDS = range(300)


def test_a_seed_always_draws_the_same() -> None:
    assert draw_options(7) == draw_options(7)
    assert draw_options(7) != draw_options(8)


def test_options_survive_json() -> None:
    """A failing run is stored and replayed as such a file, also when the seed draws something else by then."""
    for seed in range(50):
        options = draw_options(seed)
        assert Options.from_dict(json.loads(json.dumps(options.as_dict()))) == options


def test_the_table_names_everything_that_was_drawn() -> None:
    options = draw_options(11)
    table = options.table()
    assert all(topic.name in table for topic in options.topics)
    assert all(kind in table for kind in options.kinds)
    assert all(f"{name}={value}" in table for name, value in options.settings.items())


def test_a_kind_left_out_changes_no_other_fault() -> None:
    """Shrinking depends on it: what stays happens at the same time, with the same details."""
    options = next(options for options in map(draw_options, SEEDS) if len(options.kinds) > 5 and len(options.faults) > 8)
    gone = options.faults[0].kind
    less = options.without(gone)
    assert gone not in less.kinds
    assert less.faults == tuple(fault for fault in options.faults if fault.kind != gone)
    assert less.topics == options.topics


def test_single_faults_can_be_left_out() -> None:
    options = next(options for options in map(draw_options, SEEDS) if len(options.faults) > 5)
    first, second, *rest = options.faults
    assert options.without_faults([first.number]).faults == (second, *rest)


def test_every_kind_of_fault_is_known_to_the_nemesis_and_is_drawn() -> None:
    known = {*FAULTS, *DOUBLE_FAULTS, *DIRECTORY_FAULTS, *GROUP_FAULTS, *TRANSACTION_FAULTS}
    assert set(KINDS) == known
    drawn = {fault.kind for seed in SEEDS for fault in draw_options(seed).faults}
    assert drawn == known


def test_double_faults_leave_the_rest_of_a_seed_as_it_was() -> None:
    """Double faults are drawn separately, and occur only where losses are permitted."""
    drawn = [draw_options(seed) for seed in SEEDS]
    doubled = [options for options in drawn if RECOVER in options.admin]
    assert doubled
    assert all(options.loss_permitted for options in doubled)
    for options in doubled:
        rest = sorted(fault.number for fault in options.faults if fault.kind not in DOUBLE_FAULTS)
        assert rest == list(range(len(rest)))
        times = [fault.at_s for fault in options.faults]
        assert times == sorted(times)
        strategies = ("unclean.recovery.strategy", "unclean.leader.election.enable")
        assert all(any(key in topic.configs for key in strategies) for topic in options.topics)


def test_swarms_differ() -> None:
    """If every run had everything, rare combinations would never occur."""
    sizes = {len(draw_options(seed).kinds) for seed in SEEDS}
    assert min(sizes) == 0
    assert max(sizes) > len(FAULTS) * 0.7


def test_drawn_settings_are_valid_configurations() -> None:
    voters = "101@h:1"
    for seed in SEEDS:
        options = draw_options(seed)
        given = {"node.id": 1, "log.dirs": "/d", "controller.quorum.voters": voters}
        BrokerConfig.from_mapping({**given, **options.settings})
        ControllerConfig.from_mapping({**given, "node.id": 101, **options.controller_settings})
        assert all(t.min_insync_replicas <= t.replication_factor <= options.brokers for t in options.topics)


def test_small_and_large_clusters_are_drawn() -> None:
    sizes = {(draw_options(seed).controllers, draw_options(seed).brokers) for seed in SEEDS}
    assert {controllers for controllers, _ in sizes} == {1, 3, 5}
    assert {brokers for _, brokers in sizes} == {1, 2, 3, 4, 5}


def test_the_longest_time_out_is_the_bound_of_the_heal() -> None:
    options = draw_options(3)
    assert options.timeout_s_max >= options.settings["broker.session.timeout.ms"] / 1000
    longer = options.replaced(settings={**options.settings, "replica.lag.time.max.ms": 77_000})
    assert longer.timeout_s_max == 77


def test_deleting_records_changes_nothing_else_that_a_seed_draws() -> None:
    """It is drawn separately. Only consumers are not reset to the end, because they would not report the records that they
    skip."""
    drawn = [draw_options(seed) for seed in SEEDS]
    share = sum(options.trims for options in drawn) / len(drawn)
    assert 0.08 < share < 0.25
    for options in drawn:
        if options.trims:
            assert all(plan.options["auto_offset_reset"] == "earliest" for plan in options.consumers)
    assert any(plan.options["auto_offset_reset"] == "latest" for options in drawn for plan in options.consumers)


def test_a_change_of_configuration_changes_nothing_else_that_a_seed_draws() -> None:
    drawn = [draw_options(seed) for seed in SEEDS]
    assert 0.08 < sum(options.reconfigures for options in drawn) / len(drawn) < 0.25


def test_reassignments_and_drains_change_nothing_else_that_a_seed_draws() -> None:
    drawn = [draw_options(seed) for seed in SEEDS]
    assert 0.05 < sum(options.reassigns for options in drawn) / len(drawn) < 0.15
    assert 0.02 < sum(options.drains for options in drawn) / len(drawn) < 0.1
    assert all(options.brokers > 1 for options in drawn if options.reassigns or options.drains)


def test_directories_fail_only_where_brokers_have_several() -> None:
    drawn = [draw_options(seed) for seed in SEEDS]
    several = [options for options in drawn if options.log_dirs]
    assert 0.05 < len(several) / len(drawn) < 0.15
    assert {len(options.log_dirs) for options in several} == {2, 3}
    failing = [options for options in drawn if set(DIRECTORY_FAULTS) & set(options.kinds)]
    assert failing
    assert all(options.log_dirs for options in (*failing, *(options for options in drawn if options.moves_logs)))
    for options in failing:
        assert len({fault.number for fault in options.faults}) == len(options.faults)


def test_groups_are_drawn_apart() -> None:
    """A quarter of the runs have groups; the rest of such a run is the same as without them."""
    drawn = [draw_options(seed) for seed in SEEDS]
    with_members = [options for options in drawn if options.members]
    assert 0.15 < len(with_members) / len(drawn) < 0.35
    assert all(not options.group_work for options in drawn if not options.members)
    assert all(options.members for options in drawn if set(GROUP_FAULTS) & set(options.kinds))
    for options in with_members:
        assert (
            options.settings["group.consumer.session.timeout.ms"] > 3 * options.settings["group.consumer.heartbeat.interval.ms"]
        )
        assert options.settings["offsets.topic.replication.factor"] <= options.brokers


def test_members_of_all_kinds_are_drawn() -> None:
    members = [member for seed in SEEDS for member in draw_options(seed).members]
    assert {member.protocol for member in members} == {NEWER, CLASSIC}
    assert {member.event for member in members} == {"", "crash", "pause", "leave", "idle", "switch"}
    assert {bool(member.pattern) for member in members} == {bool(member.instance_id) for member in members} == {True, False}
    assert {member.commits for member in members} == {"auto", "each", "positions"}


def test_conditional_appends_are_drawn_apart() -> None:
    drawn = [draw_options(seed) for seed in SEEDS]
    assert 0.05 < sum(options.racers > 0 for options in drawn) / len(drawn) < 0.2
    assert 0.05 < sum(options.holders == 2 for options in drawn) / len(drawn) < 0.2


def test_an_upgrade_changes_nothing_else_that_a_seed_draws() -> None:
    drawn = [draw_options(seed) for seed in SEEDS]
    assert 0.08 < sum(options.upgrades for options in drawn) / len(drawn) < 0.25


def test_compaction_is_drawn_with_keys_and_a_busy_cleaner() -> None:
    drawn = [draw_options(seed) for seed in SEEDS]
    topics = [topic for options in drawn for topic in options.topics]
    assert 0.15 < sum(topic.is_compacted for topic in topics) / len(topics) < 0.35
    assert all(bool(topic.keys) == topic.is_compacted for topic in topics)
    for options in drawn:
        is_busy = options.settings.get("log.cleaner.backoff.ms", 15_000) <= 500
        assert is_busy == any(topic.is_compacted for topic in options.topics) or options.members or options.writers
    assert any(topic.tombstones and topic.configs["delete.retention.ms"] == 0 for topic in topics if topic.is_compacted)
