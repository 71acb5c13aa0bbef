"""The rules and scrape configurations of deploy/prometheus, checked with Prometheus' own promtool.

The descriptions are checked too: the commands, keys and events that they name must exist.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from queries import known_series, metrics_in
from tools import DEPLOY, ROOT, check, tool

from strandline.controller.metadata.config_keys import TOPIC_CONFIGS
from strandline.node import keys_of

FOLDER = DEPLOY / "prometheus"


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load((FOLDER / "rules.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


ALERTS = alerts()
every_alert = pytest.mark.parametrize("alert", ALERTS, ids=[rule["alert"] for rule in ALERTS])


def scenarios() -> list[dict[str, Any]]:
    return list(yaml.safe_load((FOLDER / "rules_test.yml").read_text())["tests"])


# -- promtool ---------------------------------------------------------------------------------------------------------


def test_the_rules_are_valid() -> None:
    said = check(tool("promtool"), "check", "rules", "--lint-fatal", FOLDER / "rules.yml")
    assert f"{len(ALERTS)} rules found" in said


@pytest.mark.parametrize("name", ["prometheus.yml", "prometheus-local.yml"])
def test_the_scrape_configuration_is_valid(name: str) -> None:
    """promtool also checks the rule file that the configuration names."""
    assert "SUCCESS" in check(tool("promtool"), "check", "config", FOLDER / name)


def test_alerts_fire_as_rules_test_expects() -> None:
    check(tool("promtool"), "test", "rules", FOLDER / "rules_test.yml")


@every_alert
def test_every_alert_fires_and_resolves_in_a_test(alert: dict[str, Any]) -> None:
    def fires(samples: list[dict[str, Any]]) -> bool:
        return any(f'alertname="{alert["alert"]}"' in sample["labels"] for sample in samples)

    for scenario in scenarios():
        seen = [fires(t["exp_samples"]) for t in scenario["promql_expr_test"]]
        if True in seen and not seen[-1]:
            return
    pytest.fail("no scenario of rules_test.yml has it firing and, at the end, not firing")


def test_promtool_finds_a_rule_that_does_not_fire(tmp_path: Path) -> None:
    """The rule tests can fail: with another limit one of them does."""
    rules = (FOLDER / "rules.yml").read_text()
    (tmp_path / "rules.yml").write_text(rules.replace("underreplicatedpartitions) > 0", "underreplicatedpartitions) > 100"))
    (tmp_path / "rules_test.yml").write_text((FOLDER / "rules_test.yml").read_text())
    done = subprocess.run(
        [tool("promtool"), "test", "rules", "rules_test.yml"], cwd=tmp_path, capture_output=True, timeout=60, check=False
    )
    assert done.returncode != 0


# -- names ------------------------------------------------------------------------------------------------------------


@every_alert
def test_every_metric_is_one_that_the_nodes_have(alert: dict[str, Any]) -> None:
    assert metrics_in(alert["expr"]) <= known_series() | {"up"}


@pytest.mark.parametrize("name", ["prometheus.yml", "prometheus-local.yml"])
def test_every_target_has_the_labels_of_the_rules(name: str) -> None:
    for job in yaml.safe_load((FOLDER / name).read_text())["scrape_configs"]:
        assert job["job_name"] in ("strandline-broker", "strandline-controller")
        relabelled = {rule["target_label"] for rule in job.get("relabel_configs", [])}
        for group in job["static_configs"]:
            assert {"cluster", "instance"} <= set(group["labels"]) | relabelled


def test_the_containers_are_scraped_at_their_ports() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    for job in yaml.safe_load((FOLDER / "prometheus.yml").read_text())["scrape_configs"]:
        role = job["job_name"].removeprefix("strandline-")
        expected = {
            f"{name}:{service['environment']['STRANDLINE_HTTP_LISTENER'].rpartition(':')[2]}"
            for name, service in services.items()
            if name.startswith(f"{role}-")
        }
        assert {target for group in job["static_configs"] for target in group["targets"]} == expected


def test_a_local_cluster_is_scraped_at_its_ports(tmp_path: Path) -> None:
    """prometheus-local.yml uses the default ports of `strandline up`."""
    from strandline.local_cluster import LocalCluster

    described = LocalCluster(tmp_path / "cluster", base_port=9092).describe()["nodes"]
    scraped = {
        (group["labels"]["instance"], target)
        for job in yaml.safe_load((FOLDER / "prometheus-local.yml").read_text())["scrape_configs"]
        for group in job["static_configs"]
        for target in group["targets"]
    }
    assert scraped == {(node["name"], node["http"]) for node in described}


# -- words ------------------------------------------------------------------------------------------------------------


@every_alert
def test_every_alert_has_severity_and_description(alert: dict[str, Any]) -> None:
    assert alert["labels"]["severity"] in ("critical", "warning")
    assert set(alert["annotations"]) == {"summary", "description"}
    assert len(alert["annotations"]["description"]) > 200


def commands() -> list[str]:
    words = " ".join(rule["annotations"]["description"] for rule in ALERTS)
    return sorted(set(re.findall(r"`(strandline [^`]+)`", words)))


@pytest.mark.parametrize("command", commands())
def test_every_command_of_an_alert_exists(command: str) -> None:
    """The options exist too: an operator must be able to copy the command from the alert."""
    words = command.split()
    options = [word for word in words if word.startswith("--")]
    names = [word for word in words[1:] if not word.startswith("-")]
    program = str(Path(sys.executable).with_name("strandline"))
    done = subprocess.run([program, *names, "--help"], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    assert all(option in done.stdout for option in options)


@every_alert
def test_every_key_and_event_of_an_alert_exists(alert: dict[str, Any]) -> None:
    """Both contain dots: `min.insync.replicas` is a key, `partition.damaged` an event of the log."""
    keys = {key.name for role in ("broker", "controller") for key in keys_of(role)} | set(TOPIC_CONFIGS)
    events = set(re.findall(r"`([a-z_]+\.[a-z_]+)`", (ROOT / "docs" / "logs.md").read_text()))
    named = set(re.findall(r"\b[a-z_]+(?:\.[a-z_]+)+\b", alert["annotations"]["description"]))
    assert named <= keys | events
