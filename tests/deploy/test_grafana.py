"""The dashboard of deploy/grafana: the committed file is up to date, its metrics exist, and Grafana finds it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from dashboard_file import FILE, document, panels, queries, substituted, variables
from queries import known_series, metrics_in
from tools import DEPLOY, ROOT, check, tool

FOLDER = DEPLOY / "grafana"
GRAFANA_WIDTH = 24
every_query = pytest.mark.parametrize("expr", [expr for _, expr in queries()], ids=[title for title, _ in queries()])


def test_the_committed_dashboard_is_up_to_date() -> None:
    """If this fails, run `python deploy/grafana/dashboard.py`."""
    program = "import dashboard, sys; sys.stdout.write(dashboard.render())"
    done = subprocess.run([sys.executable, "-c", program], cwd=FOLDER, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == FILE.read_text()


@every_query
def test_every_metric_is_one_that_the_nodes_have(expr: str) -> None:
    assert metrics_in(expr) <= known_series() | {"up"}


def test_every_query_is_promql(tmp_path: Path) -> None:
    """promtool checks the query as the expression of a rule."""
    values = dict.fromkeys(variables(), "x")
    rules = [
        {"record": f"query{n}", "expr": substituted(expr, values, "1m")}  # a rule's name has no blanks
        for n, (_, expr) in enumerate(queries())
    ]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    check(tool("promtool"), "check", "rules", tmp_path / "rules.yml")


@every_query
def test_every_query_selects_the_chosen_cluster(expr: str) -> None:
    """One Prometheus may monitor several clusters, and a panel must not show their sum."""
    assert expr.count('{cluster="$cluster"') == expr.count("{")


def test_replication_comes_first() -> None:
    titles = [panel["title"] for panel in document()["panels"]]
    assert titles[:4] == ["Replication", "Offline partitions", "Under min ISR", "Under-replicated"]


def test_every_panel_has_a_description() -> None:
    for panel in panels():
        assert len(panel["description"]) > 20, panel["title"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def test_panels_do_not_overlap() -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in document()["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= GRAFANA_WIDTH
        for cell in [(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])]:
            assert taken.setdefault(cell, panel["title"]) == panel["title"]
    ids = [panel["id"] for panel in document()["panels"]]
    assert len(set(ids)) == len(ids)


# -- provisioning -----------------------------------------------------------------------------------------------------


def service(name: str) -> dict[str, list[str]]:
    return dict(yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"][name])


def mounts(name: str) -> dict[Path, str]:
    """Return the mounted folders of the checkout, with their paths in the container."""
    parts = [volume.split(":") for volume in service(name)["volumes"] if volume.startswith("./")]
    return {(ROOT / here).resolve(): there for here, there, *_ in parts}


def test_grafana_finds_the_dashboard_where_compose_mounts_it() -> None:
    provider = yaml.safe_load((FOLDER / "provisioning" / "dashboards" / "strandline.yml").read_text())["providers"][0]
    assert mounts("grafana")[FILE.parent] == provider["options"]["path"]
    assert mounts("grafana")[FOLDER / "provisioning"] == "/etc/grafana/provisioning"


def test_grafana_uses_the_prometheus_of_the_compose_file() -> None:
    (source,) = yaml.safe_load((FOLDER / "provisioning" / "datasources" / "prometheus.yml").read_text())["datasources"]
    scheme, host, port = source["url"].split(":")
    assert (scheme, host) == ("http", "//prometheus")
    assert any(published.endswith(f":{port}") for published in service("prometheus")["ports"])
    assert set(service("grafana")["networks"]) & set(service("prometheus")["networks"])


def test_rates_use_the_scrape_interval() -> None:
    """Grafana's $__rate_interval is four times the scrape interval, so that a rate always has two samples."""
    (source,) = yaml.safe_load((FOLDER / "provisioning" / "datasources" / "prometheus.yml").read_text())["datasources"]
    scraping = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())["global"]
    assert source["jsonData"]["timeInterval"] == scraping["scrape_interval"]


def test_prometheus_finds_its_configuration_where_compose_mounts_it() -> None:
    assert mounts("prometheus")[DEPLOY / "prometheus"] == "/etc/prometheus"
    assert (DEPLOY / "prometheus" / "prometheus.yml").is_file()
