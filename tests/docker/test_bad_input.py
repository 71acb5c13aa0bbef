"""A container with a wrong environment or volume logs one clear sentence, exits with a code other than 0, and does not change the
volume.

tests/cli and tests/processes test more variants with processes, faster. These tests need an engine: volumes that are mounted
read-only, are full or belong to another container, and names that do not resolve."""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from engine import Done, docker, log_lines, run, wait_until
from volumes import Volumes

pytestmark = [pytest.mark.docker, pytest.mark.processes]

EXITS_WITHIN_S = 60
DATA = "/var/lib/strandline"
HARDENED = ("--init", "--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges")
BROKER = {
    "STRANDLINE_NODE_ID": "1",
    "STRANDLINE_LISTENERS": "PLAINTEXT://0.0.0.0:9092",
    "STRANDLINE_HTTP_LISTENER": "0.0.0.0:8092",
    "STRANDLINE_INITIAL_BROKER_REGISTRATION_TIMEOUT_MS": "3000",
}
CONTROLLER = {
    "STRANDLINE_NODE_ID": "101",
    "STRANDLINE_LISTENERS": "CONTROLLER://0.0.0.0:9093",
    "STRANDLINE_HTTP_LISTENER": "0.0.0.0:8093",
}


@dataclass
class ContainerCluster:
    """One running controller, and the volume of its broker, which was shut down cleanly and removed."""

    name: str
    """Of the network, and the first part of all other names."""
    image: str

    @property
    def voters(self) -> str:
        return f"101@{self.name}-controller:9093"

    def volume(self, role: str) -> str:
        return f"{self.name}-{role}"

    def options(self, role: str, mount: str, changes: dict[str, str]) -> list[str]:
        """Return a node's variables with these changes; an empty value removes a variable."""
        environment = {
            **(BROKER if role == "broker" else CONTROLLER),
            "STRANDLINE_CONTROLLER_QUORUM_VOTERS": self.voters,
            **({"STRANDLINE_ADVERTISED_LISTENERS": f"PLAINTEXT://{self.name}-broker:9092"} if role == "broker" else {}),
            **changes,
        }
        variables = [word for name, value in environment.items() if value for word in ("-e", f"{name}={value}")]
        return [*HARDENED, "--network", self.name, *variables, "-v", mount, self.image, role]

    def start(self, role: str) -> None:
        docker("run", "-d", "--name", f"{self.name}-{role}", *self.options(role, f"{self.volume(role)}:{DATA}", {}))
        self.wait_ready(role)

    def wait_ready(self, role: str) -> None:
        container = f"{self.name}-{role}"
        wait_until(lambda: run("docker", "exec", container, "strandline", "health", check=False).code == 0, f"{role} is ready")

    def stop(self, role: str) -> None:
        docker("stop", f"{self.name}-{role}")
        docker("rm", f"{self.name}-{role}")

    def command(self, *words: str, stdin: str = "") -> str:
        options = ["--network", self.name, "-e", f"STRANDLINE_BOOTSTRAP={self.name}-broker:9092"]
        return docker("run", "--rm", "-i", *options, self.image, *words, stdin=stdin)

    def refusal(self, role: str, volume: str, *, read_only: bool = False, code: int = 1, **changes: str) -> str:
        """Start a node that must fail with exit code `code`; returns its sentence."""
        name = f"{self.name}-refused"
        options = self.options(role, f"{volume}:{DATA}{':ro' if read_only else ''}", changes)
        try:
            return sentence(run("docker", "run", "--name", name, *options, check=False, timeout_s=EXITS_WITHIN_S), code)
        except subprocess.TimeoutExpired:
            pytest.fail(f"it runs, and should have been refused: {docker('logs', name)}")
        finally:
            docker("rm", "--force", name)


def sentence(done: Done, code: int) -> str:
    """Return the sentence in the last line of the log. No line may be a traceback."""
    lines = log_lines(done.out + done.err)
    errors = [line for line in lines if line["level"] in ("error", "critical")]
    assert done.code == code, lines
    assert errors[-1] == lines[-1]
    assert not any("exception" in line for line in lines), lines
    assert len(errors) == 1 or all("failed: " in line["reason"] for line in errors), errors
    return str(lines[-1]["reason"])


@contextmanager
def containers(image: str) -> Iterator[ContainerCluster]:
    cluster = ContainerCluster(f"strandline-bad-{secrets.token_hex(3)}", image)
    docker("network", "create", cluster.name)
    try:
        for role in ("controller", "broker"):
            docker("volume", "create", cluster.volume(role))
            cluster.start(role)
        cluster.command("topic", "create", "orders", "--partitions", "2")
        cluster.command("produce", "orders", stdin="".join(f"{i}\n" for i in range(200)))
        cluster.stop("broker")
        yield cluster
    finally:
        for role in ("broker", "controller"):
            docker("rm", "-f", "-v", f"{cluster.name}-{role}", check=False)
            docker("volume", "rm", "-f", cluster.volume(role))
        docker("network", "rm", cluster.name)


@pytest.fixture(scope="module")
def cluster(image: str) -> Iterator[ContainerCluster]:
    with containers(image) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def other(image: str) -> Iterator[ContainerCluster]:
    """A second cluster, independent of the first."""
    with containers(image) as cluster:
        yield cluster


@pytest.fixture
def untouched(cluster: ContainerCluster, volumes: Volumes) -> Iterator[str]:
    """The broker's volume; the fixture checks that the test changes no byte of it."""
    before = volumes.hashes(cluster.volume("broker"))
    assert any(path.endswith(".log") for path in before)
    yield cluster.volume("broker")
    assert volumes.hashes(cluster.volume("broker")) == before


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("STRANDLINE_NODE_ID", "", ["node.id", "required"]),
        ("STRANDLINE_NODE_ID", "one", ["node.id", "'one'"]),
        ("STRANDLINE_NODE_IDD", "1", ["'STRANDLINE_NODE_IDD'", "did you mean 'STRANDLINE_NODE_ID'?"]),
        ("STRANDLINE_CONTROLLER_QUORUM_VOTERS", "", ["controller.quorum.voters", "required"]),
        ("STRANDLINE_CONTROLLER_QUORUM_VOTERS", "controller:9093", ["controller.quorum.voters", "id@host:port"]),
        ("STRANDLINE_LISTENERS", "0.0.0.0:9092", ["listeners", "NAME://host:port"]),
        ("STRANDLINE_ADVERTISED_LISTENERS", "", ["listeners", "0.0.0.0", "advertised.listeners"]),
        ("STRANDLINE_HTTP_LISTENER", "8092", ["http.listener", "'8092'"]),
        ("STRANDLINE_LOG_LEVEL", "loud", ["STRANDLINE_LOG_LEVEL", "'loud'"]),
        ("STRANDLINE_CONFIG", "/missing.toml", ["/missing.toml", "No such file"]),
    ],
)
def test_a_wrong_or_missing_variable_is_named(
    cluster: ContainerCluster, untouched: str, variable: str, value: str, words: list[str]
) -> None:
    """Exit code 2 says that a restart would fail in the same way."""
    reason = cluster.refusal("broker", untouched, code=2, **{variable: value})
    assert all(word in reason for word in words), reason


def test_the_volume_of_another_node_is_refused(cluster: ContainerCluster, untouched: str) -> None:
    """This happens when two mounts are swapped in a compose file."""
    reason = cluster.refusal("broker", untouched, STRANDLINE_NODE_ID="2")
    assert reason == f"{DATA} belongs to node 1; this is node 2: check node.id and the data directory"


def test_a_brokers_volume_is_refused_by_a_controller(cluster: ContainerCluster, untouched: str) -> None:
    voters = cluster.voters.replace("101@", "1@")
    reason = cluster.refusal("controller", untouched, STRANDLINE_NODE_ID="1", STRANDLINE_CONTROLLER_QUORUM_VOTERS=voters)
    assert f"{DATA} is a broker's data directory" in reason


def test_a_controllers_volume_is_refused_by_a_broker(cluster: ContainerCluster, volumes: Volumes) -> None:
    with volumes.copy(cluster.volume("controller")) as volume:
        before = volumes.hashes(volume)
        reason = cluster.refusal(
            "broker", volume, STRANDLINE_NODE_ID="101", STRANDLINE_CONTROLLER_QUORUM_VOTERS=cluster.voters.replace("101@", "7@")
        )
        assert f"{DATA} is a controller's data directory" in reason
        assert volumes.hashes(volume) == before


def test_a_volume_with_another_id_than_configured_is_refused(cluster: ContainerCluster, untouched: str) -> None:
    reason = cluster.refusal("broker", untouched, STRANDLINE_CLUSTER_ID="another")
    assert reason.startswith(f"{DATA} belongs to cluster ")
    assert reason.endswith("; this node is configured for another: check cluster.id and the data directory")


def test_a_volume_with_another_id_than_the_controllers_is_refused(
    cluster: ContainerCluster, other: ContainerCluster, untouched: str
) -> None:
    """No cluster id is configured: the volume contains its own, and the controllers send theirs."""
    reason = other.refusal("broker", untouched)
    assert "another cluster" in reason
    assert "check controller.quorum.voters and the data directory" in reason


def test_a_volume_of_a_newer_format_is_refused(cluster: ContainerCluster, volumes: Volumes) -> None:
    """An older release must not guess the meaning of data that a newer release wrote."""
    with volumes.copy(cluster.volume("broker")) as volume:
        volumes.edit(volume, "meta.properties", "version=1", "version=2")
        before = volumes.hashes(volume)
        reason = cluster.refusal("broker", volume)
        assert "meta.properties" in reason
        assert "version" in reason
        assert volumes.hashes(volume) == before


def test_a_volume_with_logs_but_without_meta_properties_is_never_formatted(cluster: ContainerCluster, volumes: Volumes) -> None:
    with volumes.copy(cluster.volume("broker")) as volume:
        volumes.python(volume, "import os; os.remove('/volume/meta.properties')")
        before = volumes.hashes(volume)
        assert "holds logs but no meta.properties" in cluster.refusal("broker", volume)
        assert volumes.hashes(volume) == before


@pytest.mark.parametrize("role", ["broker", "controller"])
def test_a_read_only_volume_is_reported(cluster: ContainerCluster, volumes: Volumes, role: str) -> None:
    with volumes.copy(cluster.volume(role)) as volume:
        before = volumes.hashes(volume)
        reason = cluster.refusal(role, volume, read_only=True)
        assert f"data directory {DATA} cannot be used" in reason
        assert "Read-only file system" in reason
        assert volumes.hashes(volume) == before


def test_a_volume_of_another_user_is_reported(cluster: ContainerCluster, volumes: Volumes) -> None:
    """This happens with a host directory that root created."""
    with volumes.copy(cluster.volume("broker")) as volume:
        docker("exec", "--user", "0:0", volume, "sh", "-c", "chown -R 0:0 /volume && chmod 700 /volume")
        reason = cluster.refusal("broker", volume)
        assert "Permission denied" in reason
        assert "belongs to uid 0, this process runs as uid 10001" in reason


FORGET_CLEAN_SHUTDOWN = "import pathlib; pathlib.Path('/volume/.kafka_cleanshutdown').unlink(missing_ok=True)"
FILL = "f = open('/volume/ballast', 'wb', buffering=0)\ntry:\n  while True: f.write(bytes(512))\nexcept OSError: pass"


@pytest.mark.parametrize("role", ["broker", "controller"])
def test_a_full_volume_ends_the_start_without_loss(cluster: ContainerCluster, volumes: Volumes, role: str) -> None:
    """The node cannot write what a start needs. With free space again it continues with its data."""
    with volumes.small(like=cluster.volume(role)) as volume:
        volumes.python(volume, f"{FORGET_CLEAN_SHUTDOWN}\n{FILL}")
        before = volumes.hashes(volume)
        assert "No space left on device" in cluster.refusal(role, volume)
        assert volumes.hashes(volume) == before


@pytest.mark.parametrize("role", ["broker", "controller"])
def test_a_full_new_volume_is_reported(cluster: ContainerCluster, volumes: Volumes, role: str) -> None:
    with volumes.small() as volume:
        volumes.python(volume, FILL)
        assert "No space left on device" in cluster.refusal(role, volume)
        assert set(volumes.hashes(volume)) <= {"ballast", ".lock"}


@pytest.mark.parametrize(
    ("address", "words"), [("nowhere.invalid:9093", "nowhere.invalid"), ("127.0.0.1:9", "Connection refused")]
)
def test_a_missing_controller_is_named(cluster: ContainerCluster, untouched: str, address: str, words: str) -> None:
    """A name may resolve later, so the broker retries for a while; then it names the address."""
    reason = cluster.refusal("broker", untouched, STRANDLINE_CONTROLLER_QUORUM_VOTERS=f"101@{address}")
    assert "found no controller in 3 s" in reason
    assert address in reason
    assert words in reason


def test_a_new_controller_without_peers_ends(cluster: ContainerCluster, volumes: Volumes) -> None:
    """At the first start controllers need each other, and a name that does not resolve for a minute is wrong."""
    voters = "101@127.0.0.1:9093,102@nowhere.invalid:9093,103@127.0.0.1:9"
    changes = {"STRANDLINE_CONTROLLER_QUORUM_VOTERS": voters, "STRANDLINE_CLUSTER_ID_AGREEMENT_TIMEOUT_MS": "2000"}
    with volumes.small() as volume:
        reason = cluster.refusal("controller", volume, **changes)
        assert "could not agree on a cluster id in 2 s" in reason
        assert "cannot resolve nowhere.invalid:9093" in reason
        assert set(volumes.hashes(volume)) <= {".lock"}


def test_a_taken_port_is_named(cluster: ContainerCluster, untouched: str) -> None:
    reason = cluster.refusal("broker", untouched, STRANDLINE_HTTP_LISTENER="0.0.0.0:9092")
    assert "9092" in reason
    assert "in use" in reason


def test_the_broker_still_starts_with_all_its_records(cluster: ContainerCluster) -> None:
    """The tests before have not damaged the volume: with the right environment the broker starts."""
    cluster.start("broker")
    try:
        lines = cluster.command("consume", "orders", "--from", "beginning", "--exit-at-end").split()
        assert sorted(map(int, lines)) == list(range(200))
    finally:
        cluster.stop("broker")
