"""The units of deploy/systemd, checked with systemd's own tools and compared with the behaviour of the nodes.

`systemd-analyze` reads the files and needs no running systemd.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from configparser import RawConfigParser
from pathlib import Path

import pytest
from tools import DEPLOY, check, tool

from strandline.broker.config import BrokerConfig
from strandline.controller.config import ControllerConfig
from strandline.controller.metadata.node_keys import BROKER_KEYS
from strandline.node import from_environment

UNITS = DEPLOY / "systemd"
ROLES = ("broker", "controller")
INSTALLED = "/opt/strandline/bin/strandline"
EXPOSURE_MAX = 15
"""Tenths on systemd's scale from 0 (locked away) to 100 (root). The rest of the exposure is that nodes accept TCP connections
from any address."""


class Directives(dict[str, list[str]]):
    """A unit's directives; a repeated one has several values."""

    def __setitem__(self, key: str, value: list[str]) -> None:
        super().__setitem__(key, self[key] + value if key in self and isinstance(value, list) else value)


def unit(role: str) -> RawConfigParser:
    parser = RawConfigParser(strict=False, dict_type=Directives, delimiters=("=",), interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string((UNITS / f"strandline-{role}@.service").read_text())
    return parser


def values(role: str, section: str, directive: str) -> list[str]:
    return str(unit(role)[section][directive]).splitlines()


def environment_file(role: str) -> dict[str, str]:
    lines = (UNITS / f"{role}.env.example").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """The units as installed, except for the path of the program, which must exist for the check."""
    for file in UNITS.glob("strandline*"):
        text = file.read_text()
        if file.suffix == ".service":
            assert f"ExecStart={INSTALLED} " in text
        (tmp_path / file.name).write_text(text.replace(INSTALLED, str(Path(sys.executable).with_name("strandline"))))
    return tmp_path


def test_systemd_accepts_the_units(units: Path) -> None:
    """`verify` loads the units with all their references, and reports unknown directives."""
    said = check(tool("systemd-analyze"), "verify", *sorted(units.iterdir()))
    assert said == ""


def test_systemd_finds_an_unknown_directive(units: Path) -> None:
    """The previous check can fail: `verify` reports a directive that does not exist."""
    file = units / "strandline-broker@.service"
    file.write_text(file.read_text().replace("Restart=on-failure", "Restart=on-fealure\nRestartSecc=1"))
    done = subprocess.run([tool("systemd-analyze"), "verify", str(file)], capture_output=True, text=True, timeout=60, check=False)
    assert "RestartSecc" in done.stderr


@pytest.mark.parametrize("role", ROLES)
def test_the_units_have_few_rights(units: Path, role: str) -> None:
    check(
        tool("systemd-analyze"),
        "security",
        "--offline=true",
        "--no-pager",
        f"--threshold={EXPOSURE_MAX}",
        units / f"strandline-{role}@.service",
    )


def test_sysusers_creates_the_user_of_the_units(tmp_path: Path) -> None:
    said = check(tool("systemd-sysusers"), "--dry-run", f"--root={tmp_path}", UNITS / "sysusers.conf")
    for role in ROLES:
        assert f"'{values(role, 'Service', 'User')[0]}'" in said


@pytest.mark.parametrize("role", ROLES)
def test_the_example_environment_is_a_valid_configuration(role: str, tmp_path: Path) -> None:
    """A node accepts the example with the id and directory that the unit adds."""
    given = environment_file(role) | {
        "STRANDLINE_NODE_ID": {"broker": "1", "controller": "101"}[role],
        "STRANDLINE_LOG_DIRS": str(tmp_path / "data"),
    }
    config = {"broker": BrokerConfig, "controller": ControllerConfig}[role].from_mapping(from_environment(role, given))
    assert str(config.node_id) == given["STRANDLINE_NODE_ID"]


@pytest.mark.parametrize("role", ROLES)
def test_the_instance_sets_id_and_directory(role: str) -> None:
    """Two instances on a machine must not share an id or a directory."""
    assert values(role, "Service", "Environment") == [
        "STRANDLINE_NODE_ID=%i",
        f"STRANDLINE_LOG_DIRS=%S/strandline/{role}-%i",
    ]
    assert values(role, "Service", "StateDirectory") == [f"strandline/{role}-%i"]


def test_a_broker_has_time_to_hand_over_its_leaders() -> None:
    """A SIGKILL during a controlled shutdown would make it an unclean one."""
    shutdown_ms = next(key.default for key in BROKER_KEYS if key.name == "controlled.shutdown.timeout.ms")
    assert float(values("broker", "Service", "TimeoutStopSec")[0]) * 1000 >= 3 * shutdown_ms


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("words", [("--nonsense",), ("--set", "node.id=one")], ids=["called-wrongly", "configured-wrongly"])
def test_wrong_usage_is_not_restarted(role: str, words: tuple[str, ...]) -> None:
    """The program's exit code for wrong usage is the one that the unit does not restart."""
    done = subprocess.run([sys.executable, "-m", "strandline.node", role, *words], capture_output=True, timeout=30, check=False)
    assert str(done.returncode) in values(role, "Service", "RestartPreventExitStatus")[0].split()
    assert values(role, "Service", "Restart") == ["on-failure"]


@pytest.mark.parametrize("role", ROLES)
def test_a_temporary_error_is_restarted(role: str, tmp_path: Path) -> None:
    """For example, the port may still be in use by the previous process."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        words = {
            "node.id": "1",
            "log.dirs": str(tmp_path / "data"),
            "controller.quorum.voters": "1@127.0.0.1:9" if role == "controller" else "101@127.0.0.1:9",
            "http.listener": f"127.0.0.1:{taken.getsockname()[1]}",
        }
        settings = [word for key, value in words.items() for word in ("--set", f"{key}={value}")]
        command = [sys.executable, "-m", "strandline.node", role, *settings]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert "address already in use" in done.stderr
    assert done.returncode == 1
    assert "1" not in values(role, "Service", "RestartPreventExitStatus")[0].split()


def test_brokers_stop_before_the_controllers_of_their_machine() -> None:
    """systemd stops units in the reverse order of their start, so the order of the start decides."""
    assert "strandline-controllers.target" in values("controller", "Unit", "Before")
    assert "strandline-controllers.target" in values("broker", "Unit", "After")[0].split()
    assert "strandline-controllers.target" in values("broker", "Unit", "Wants")[0].split()
