"""A real Prometheus, as a process on a free loopback port, for a cluster of real processes.

A test cannot wait ten minutes for an alert. So Prometheus runs copies of the files in which **a minute is a second**: every
duration of the rules (`for`, and the windows of the expressions) is divided by sixty, and the nodes are scraped twice a
second. Metrics, expressions and labels are unchanged.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml
from tools import DEPLOY, tool

from strandline.local_cluster import HOST, LocalCluster, free_port_range

SCRAPE_MS = 500
CLUSTER = "tested"
_DURATION = re.compile(r"\b(\d+)([smh])\b")
_SECONDS = {"s": 1, "m": 60, "h": 3600}


def hurried(text: str) -> str:
    """Divide the durations in a rule by sixty: `5m` becomes `5000ms`."""
    return _DURATION.sub(lambda m: f"{int(m[1]) * _SECONDS[m[2]] * 1000 // 60}ms", text)


def hurried_rules() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((DEPLOY / "prometheus" / "rules.yml").read_text())
    for group in document["groups"]:
        for rule in group["rules"]:
            rule["expr"] = hurried(rule["expr"])
            if "for" in rule:
                rule["for"] = hurried(rule["for"])
    return document


def config(cluster: LocalCluster) -> dict[str, Any]:
    """Return the jobs of prometheus.yml with the targets of this cluster."""
    return {
        "global": {"scrape_interval": f"{SCRAPE_MS}ms", "scrape_timeout": f"{SCRAPE_MS}ms", "evaluation_interval": "250ms"},
        "rule_files": ["rules.yml"],
        "scrape_configs": [
            {
                "job_name": f"strandline-{role}",
                "static_configs": [
                    {"targets": [node["http"]], "labels": {"cluster": CLUSTER, "instance": node["name"]}}
                    for node in cluster.describe()["nodes"]
                    if node["role"] == role
                ],
            }
            for role in ("broker", "controller")
        ],
    }


async def eventually(condition: Callable[[], Awaitable[bool]], what: str, within_s: float) -> None:
    """Wait for a condition, checked ten times a second, because each check costs a request."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_s
    while not await condition():
        if loop.time() > deadline:
            raise TimeoutError(f"within {within_s:g} s it did not come true that {what}")
        await asyncio.sleep(0.1)


class Prometheus:
    """A Prometheus process; `async with Prometheus(folder, cluster) as prometheus:` waits until it responds."""

    def __init__(self, folder: Path, cluster: LocalCluster) -> None:
        self._folder = folder
        self._cluster = cluster
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    async def __aenter__(self) -> Self:
        program = tool("prometheus")
        self._folder.mkdir(exist_ok=True)
        (self._folder / "prometheus.yml").write_text(yaml.safe_dump(config(self._cluster)))
        (self._folder / "rules.yml").write_text(yaml.safe_dump(hurried_rules()))
        self.port = free_port_range(1)
        self._process = self._spawn(program)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, e: BaseException | None, trace: TracebackType | None) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _spawn(self, program: str) -> subprocess.Popen[bytes]:
        with (self._folder / "log").open("wb") as log:
            return subprocess.Popen(
                [
                    program,
                    f"--config.file={self._folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={self._folder / 'data'}",
                    f"--web.listen-address={HOST}:{self.port}",
                ],
                stdout=log,
                stderr=log,
            )

    @property
    def last_words(self) -> str:
        return (self._folder / "log").read_text()[-2000:]

    async def ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"Prometheus ended: {self.last_words}"
        try:
            return bool(await asyncio.to_thread(self._get, "/-/ready"))
        except OSError:
            return False

    async def query(self, expr: str) -> list[tuple[dict[str, str], float]]:
        """Return the series of an instant query, without NaN, which is the quantile of an empty histogram."""
        data = await self._api("/api/v1/query", query=expr)
        assert data["resultType"] == "vector", expr
        series = [(s["metric"], float(s["value"][1])) for s in data["result"]]
        return [(labels, value) for labels, value in series if not math.isnan(value)]

    async def label_values(self, metric: str, label: str) -> list[str]:
        values: list[str] = await self._api(f"/api/v1/label/{label}/values", **{"match[]": metric})
        return values

    async def alerts(self, state: str = "firing") -> dict[str, list[dict[str, Any]]]:
        """Return the names of the alerts that fire now."""
        found: dict[str, list[dict[str, Any]]] = {}
        for alert in (await self._api("/api/v1/alerts"))["alerts"]:
            if alert["state"] == state:
                found.setdefault(alert["labels"]["alertname"], []).append(alert)
        return found

    async def _api(self, path: str, **parameters: str) -> Any:
        answer = json.loads(await asyncio.to_thread(self._get, f"{path}?{urllib.parse.urlencode(parameters)}"))
        assert answer["status"] == "success", answer
        return answer["data"]

    def _get(self, path: str) -> bytes:
        try:
            with urllib.request.urlopen(f"http://{HOST}:{self.port}{path}", timeout=10) as response:
                body: bytes = response.read()
                return body
        except urllib.error.HTTPError as e:
            if e.code == 503:  # not ready yet
                return b""
            raise AssertionError(f"{path}: {e.read().decode()}") from None
