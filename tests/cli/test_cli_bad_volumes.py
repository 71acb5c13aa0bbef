"""A node with a wrong or broken volume, or an unreachable cluster, prints one clear sentence, exits with a code other than 0,
and leaves the data unchanged. The processes and files are real, and so are full disks if root may mount them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cli_world import COMMAND, ENVIRONMENT, one_sentence, run, wait_until

from strandline import Consumer, Producer
from strandline.client.admin.admin import Admin
from strandline.client.admin_types import NewTopic
from strandline.local_cluster import LocalCluster, free_port_range
from strandline.protocol.errors import StrandlineError, UsageError
from strandline.storage.directory.claim import Claim
from strandline.storage.files import RealFiles

pytestmark = pytest.mark.processes

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


async def produce_some(cluster: LocalCluster, producer: Producer) -> None:
    async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        await admin.create_topics([NewTopic("orders", 1, 1)])
    for i in range(50):
        await producer.send_and_wait("orders", b"%d" % i)


@pytest.fixture(scope="module")
def worn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders of a killed cluster: a start would scan and repair the tails of the logs."""
    folder = tmp_path_factory.mktemp("worn")

    async def wear() -> None:
        async with LocalCluster(folder, brokers=1, controllers=1) as cluster:
            async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
                await produce_some(cluster, producer)
            for name in ("broker-1", "controller-101"):
                cluster.kill(name)
                await cluster.wait_ended(name)

    asyncio.run(wear())
    # A torn append, which a recovery truncates, and no index, which it rebuilds.
    (log,) = (folder / "broker-1" / "data" / "orders-0").glob("*.log")
    log.write_bytes(log.read_bytes() + b"\x00\x00\x00")
    return folder


@pytest.fixture
def data(worn: Path, tmp_path: Path) -> Callable[[str], Path]:
    def copy(name: str) -> Path:
        return Path(shutil.copytree(worn / name / "data", tmp_path / name))

    return copy


def picture(folder: Path) -> dict[str, bytes | None]:
    """Return the content of every file, and every directory."""
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}


def settings(role: str, folder: Path, **more: Any) -> list[str]:
    port = free_port_range(1)
    values = {"log.dirs": folder, "node.id": 1 if role == "broker" else 101, "controller.quorum.voters": f"101@127.0.0.1:{port}"}
    if role == "broker":
        values |= {"listeners": "PLAINTEXT://127.0.0.1:0", "initial.broker.registration.timeout.ms": 200}
    values |= {name.replace("_", "."): value for name, value in more.items()}
    return [word for key, value in values.items() for word in ("--set", f"{key}={value}")]


def refused(role: str, folder: Path, **more: Any) -> str:
    """Run a node that must refuse to start; returns its sentence, and checks that the data is unchanged."""
    before = picture(folder)
    outcome = run(role, *settings(role, folder, **more))
    assert outcome.code == 1
    assert picture(folder) == before
    *_, last = outcome.err.strip().splitlines()
    assert json.loads(last)["event"] == "node.refused"
    return str(json.loads(last)["reason"])


Data = Callable[[str], Path]

# -- data of another node -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["broker", "controller"])
def test_another_clusters_data_is_refused(data: Data, role: str) -> None:
    folder = data("broker-1" if role == "broker" else "controller-101")
    sentence = refused(role, folder, cluster_id="another-cluster")
    assert sentence.startswith(f"{folder} belongs to cluster ")
    assert sentence.endswith("; this node is configured for another-cluster: check cluster.id and the data directory")


@pytest.mark.parametrize(("role", "node_id"), [("broker", 1), ("controller", 101)])
def test_another_nodes_data_is_refused(data: Data, role: str, node_id: int) -> None:
    folder = data(f"{role}-{node_id}")
    sentence = refused(role, folder, node_id=7, controller_quorum_voters=f"{8 if role == 'broker' else 7}@127.0.0.1:1")
    assert sentence == f"{folder} belongs to node {node_id}; this is node 7: check node.id and the data directory"


def test_a_controllers_data_is_refused_by_a_broker(data: Data) -> None:
    """Two swapped volumes are noticed even if the node ids fit."""
    folder = data("controller-101")
    sentence = refused("broker", folder, node_id=101, controller_quorum_voters="7@127.0.0.1:1")
    found = f"{folder} is a controller's data directory (it holds __cluster_metadata-0)"
    assert sentence == f"{found}; this is a broker: use another data directory"


def test_a_brokers_data_is_refused_by_a_controller(data: Data) -> None:
    folder = data("broker-1")
    sentence = refused("controller", folder, node_id=1, controller_quorum_voters=f"1@127.0.0.1:{free_port_range(1)}")
    assert sentence.startswith(f"{folder} is a broker's data directory (it holds ")


@pytest.mark.parametrize(("role", "name"), [("broker", "broker-1"), ("controller", "controller-101")])
def test_data_of_a_newer_format_is_refused(data: Data, role: str, name: str) -> None:
    """An older release must not guess the meaning of data that a newer release wrote."""
    folder = data(name)
    meta = folder / "meta.properties"
    meta.write_text(meta.read_text().replace("version=1", "version=2"))
    newer = f"{meta} has version 2, written by a newer release; this release supports version 1"
    assert refused(role, folder) == f"{newer}: start the newer release"


def test_a_vote_of_a_newer_format_is_refused(data: Data) -> None:
    folder = data("controller-101")
    file = folder / "__cluster_metadata-0" / "quorum-state"
    file.write_text(file.read_text().replace('"data_version":0', '"data_version":1'))
    assert "data_version 1, but this program reads 0" in refused("controller", folder)


@pytest.mark.parametrize(("role", "name"), [("broker", "broker-1"), ("controller", "controller-101")])
@pytest.mark.parametrize("cluster_id", [None, "configured"])
def test_data_without_meta_properties_is_never_formatted(data: Data, role: str, name: str, cluster_id: str | None) -> None:
    folder = data(name)
    (folder / "meta.properties").unlink()
    more = {} if cluster_id is None else {"cluster_id": cluster_id}
    unknown = f"{folder} holds logs but no meta.properties, so their node and cluster are not known"
    assert refused(role, folder, **more) == f"{unknown}: restore the file or use another data directory"


def test_unknown_files_are_ignored(tmp_path: Path) -> None:
    """On many file systems a new volume is not empty (lost+found)."""
    folder = tmp_path / "data"
    (folder / "lost+found").mkdir(parents=True)
    (folder / ".snapshot").mkdir()
    words = ["controller", *settings("controller", folder)]
    process = subprocess.Popen([*COMMAND, *words], stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, env=ENVIRONMENT)
    try:
        wait_until((folder / "meta.properties").exists, "it is formatted")
    finally:
        process.terminate()
        assert process.wait(20) == 0


# -- the file system --------------------------------------------------------------------------------------------------------


@contextmanager
def mounted(folder: Path, *options: str) -> Iterator[Path]:
    folder.mkdir(exist_ok=True)
    if subprocess.run(["mount", *options, str(folder)], capture_output=True, check=False).returncode:
        pytest.skip("may not mount")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@needs_root
@pytest.mark.parametrize(("role", "name"), [("broker", "broker-1"), ("controller", "controller-101")])
@pytest.mark.parametrize("fresh", [False, True], ids=["worn", "fresh"])
def test_a_read_only_volume_is_reported(data: Data, tmp_path: Path, role: str, name: str, fresh: bool) -> None:
    source = tmp_path / "fresh" if fresh else data(name)
    source.mkdir(exist_ok=True)
    with mounted(tmp_path / "mount", "--bind", str(source)) as folder:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(folder)], check=True)
        sentence = refused(role, folder)
    assert sentence.startswith(f"data directory {folder} cannot be used: ")
    assert sentence.endswith("Read-only file system")


def fill(folder: Path) -> None:
    """Fill the disk to the last byte, including the last page of existing files."""
    with (folder / "ballast").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(512))


@needs_root
def test_a_full_volume_is_not_partly_formatted(tmp_path: Path) -> None:
    with mounted(tmp_path / "mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs") as folder:
        fill(folder)
        outcome = run("controller", *settings("controller", folder))
        assert outcome.code == 1
        sentence = one_sentence(outcome)
        assert sentence.startswith(f"data directory {folder} cannot be used: ")
        assert sentence.endswith("No space left on device")
        assert set(picture(folder)) <= {".lock", "ballast"}


def last_words(cluster: LocalCluster, name: str) -> dict[str, Any]:
    """Return the last line of a node's log, and check that no line is a traceback."""
    lines = [json.loads(line) for line in cluster.node(name).log_file.read_text().splitlines()]
    assert not any("exception" in line for line in lines)
    return dict(lines[-1])


@needs_root
async def test_a_full_volume_stops_a_recovery_without_loss(tmp_path: Path) -> None:
    """The recovery must write indexes and epochs. With free space again, the broker continues."""
    mount = tmp_path / "broker-1" / "data"
    mount.mkdir(parents=True)
    with mounted(mount, "-t", "tmpfs", "-o", "size=25m", "tmpfs") as folder:
        async with LocalCluster(tmp_path, brokers=1, controllers=1) as cluster:
            async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
                await produce_some(cluster, producer)
            cluster.kill("broker-1")
            await cluster.wait_ended("broker-1")
            for derived in [*folder.glob("orders-0/*index"), *folder.glob("orders-0/leader-epoch-checkpoint")]:
                derived.unlink()
            fill(folder)
            logs = {path: data for path, data in picture(folder).items() if path.endswith(".log")}
            await cluster.start_node("broker-1")
            await cluster.wait_ended("broker-1")
            assert cluster.node("broker-1").process.returncode == 1  # type: ignore[union-attr]
            words = last_words(cluster, "broker-1")
            assert words["event"] == "node.refused"
            assert words["reason"].startswith(f"data directory {folder} cannot be used: ")
            assert words["reason"].endswith("No space left on device")
            assert {path: picture(folder)[path] for path in logs} == logs
            (folder / "ballast").unlink()
            await cluster.start_node("broker-1")
            await cluster.wait_ready()
            async with Consumer("orders", bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest") as consumer:
                found = []
                async for record in consumer:
                    found.append(record.value)
                    if len(found) == 50:
                        break
                assert found == [b"%d" % i for i in range(50)]


@needs_root
async def test_a_full_disk_stops_a_controller_without_loss(tmp_path: Path) -> None:
    mount = tmp_path / "controller-101" / "data"
    mount.mkdir(parents=True)
    with mounted(mount, "-t", "tmpfs", "-o", "size=25m", "tmpfs") as folder:
        async with (
            LocalCluster(tmp_path, brokers=1, controllers=1) as cluster,
            Admin(bootstrap_servers=cluster.bootstrap) as admin,
        ):
            await admin.create_topics([NewTopic("before", 1, 1)])
            fill(folder)
            with contextlib.suppress(StrandlineError):
                await admin.create_topics([NewTopic("too-many", 2000, 1)], timeout_ms=3000)
            await cluster.wait_ended("controller-101")
            assert cluster.node("controller-101").process.returncode == 1  # type: ignore[union-attr]
            words = last_words(cluster, "controller-101")
            assert words["event"] == "node.failed"
            assert words["reason"].startswith(f"the data directory {folder} failed (")
            assert "No space left on device" in words["reason"]
            (folder / "ballast").unlink()
            await cluster.start_node("controller-101")
            await admin.create_topics([NewTopic("after", 1, 1)])
            assert {"before", "after"} <= set(await admin.list_topics())


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """Let other users enter the test's folders, which pytest closes to them."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@needs_root
def test_a_directory_of_another_user_is_named_with_both_uids(open_to_all: Path) -> None:
    """This happens when a container that does not run as root mounts a host directory of root."""
    folder = open_to_all / "data"
    folder.mkdir(mode=0o700)
    os.seteuid(65534)
    try:
        with pytest.raises(UsageError) as own:
            Claim.take(RealFiles(), str(folder), node_id=1)
        with pytest.raises(UsageError) as above:
            Claim.take(RealFiles(), str(open_to_all / "new" / "data"), node_id=1)
    finally:
        os.seteuid(0)
    who = "belongs to uid 0, this process runs as uid 65534)"
    assert str(own.value).startswith(f"data directory {folder} cannot be used: ")
    assert str(own.value).endswith(f"Permission denied ({folder} {who}")
    assert str(above.value).endswith(f"Permission denied ({open_to_all} {who}")


# -- ports and other nodes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["broker", "controller"])
def test_a_taken_port_leaves_the_data_unchanged(data: Data, role: str) -> None:
    """If a second process starts with the same configuration, it must not open the logs."""
    folder = data("broker-1" if role == "broker" else "controller-101")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        more = (
            {"listeners": f"PLAINTEXT://127.0.0.1:{port}"}
            if role == "broker"
            else {"controller_quorum_voters": f"101@127.0.0.1:{port}"}
        )
        assert refused(role, folder, **more) == f"cannot listen on 127.0.0.1:{port}: Address already in use"


@pytest.mark.parametrize("role", ["broker", "controller"])
def test_an_unresolvable_listener_ends_the_start_at_once(data: Data, role: str) -> None:
    folder = data("broker-1" if role == "broker" else "controller-101")
    more = (
        {"listeners": "PLAINTEXT://nowhere.invalid:9092"}
        if role == "broker"
        else {"controller_quorum_voters": "101@nowhere.invalid:9093"}
    )
    sentence = refused(role, folder, **more)
    assert sentence.startswith("cannot listen on nowhere.invalid:")
    assert "cannot resolve nowhere.invalid" in sentence


@pytest.mark.parametrize("name", ["broker-1", "fresh"])
def test_a_broker_gives_up_on_unresolvable_controllers_after_its_time(data: Data, tmp_path: Path, name: str) -> None:
    """Names may resolve later, and after an outage brokers may start first. So the broker waits for a limited time, and logs
    that once."""
    folder = tmp_path / "fresh" if name == "fresh" else data(name)
    folder.mkdir(exist_ok=True)
    before = {path: content for path, content in picture(folder).items() if path != ".lock"}
    voters = f"101@nowhere.invalid:9093,102@127.0.0.1:{free_port_range(1)},103@also-nowhere.invalid:9093"
    outcome = run(
        "broker", *settings("broker", folder, controller_quorum_voters=voters, initial_broker_registration_timeout_ms=1500)
    )
    assert outcome.code == 1
    lines = [json.loads(line) for line in outcome.err.strip().splitlines()]
    assert [line["event"] for line in lines] == ["peers.awaited", "node.refused"]
    for line, field in zip(lines, ("awaited", "reason"), strict=True):
        assert "cannot resolve nowhere.invalid:9093" in line[field]
        assert "cannot resolve also-nowhere.invalid:9093" in line[field]
        assert "Connection refused" in line[field]
    assert "found no controller in 1.5 s" in lines[-1]["reason"]
    assert {path: content for path, content in picture(folder).items() if path != ".lock"} == before


def test_a_new_controller_gives_up_on_unresolvable_peers_after_its_time(tmp_path: Path) -> None:
    """At the first start a controller needs all others, and an unresolvable name is usually a wrong configuration. A controller
    that belongs to a cluster waits without limit (next test)."""
    port, folder = free_port_range(1), tmp_path / "fresh"
    voters = f"101@127.0.0.1:{port},102@nowhere.invalid:9093,103@127.0.0.1:{free_port_range(1)}"
    outcome = run(
        "controller", *settings("controller", folder, controller_quorum_voters=voters, cluster_id_agreement_timeout_ms=1500)
    )
    assert outcome.code == 1
    *_, last = map(json.loads, outcome.err.strip().splitlines())
    assert last["event"] == "node.refused"
    assert "could not agree on a cluster id in 1.5 s: cannot resolve nowhere.invalid:9093" in last["reason"]
    assert not (folder / "meta.properties").exists()


@pytest.mark.parametrize("worn_out", [False, True], ids=["fresh", "worn"])
def test_a_controller_of_a_cluster_waits_for_unresolvable_peers(data: Data, tmp_path: Path, worn_out: bool) -> None:
    """The controller runs and can be stopped cleanly; it logs the missing peers once, not at each attempt."""
    folder = data("controller-101") if worn_out else tmp_path / "fresh"
    if worn_out:
        shutil.rmtree(folder / "__cluster_metadata-0")  # its voters were others; the cluster's id is still there
    port = free_port_range(1)
    voters = f"101@127.0.0.1:{port},102@nowhere.invalid:9093,103@also-nowhere.invalid:9093"
    words = ["controller", *settings("controller", folder, controller_quorum_voters=voters)]
    with (tmp_path / "err").open("w") as err:
        process = subprocess.Popen([*COMMAND, *words], stderr=err, stdin=subprocess.DEVNULL, env=ENVIRONMENT)
    try:
        wait_until(lambda: "cannot resolve nowhere.invalid:9093" in (tmp_path / "err").read_text(), "it says whom it waits for")
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
    lines = (tmp_path / "err").read_text().splitlines()
    assert sum("nowhere.invalid" in line for line in lines) <= 2
