"""A real standalone cluster of Spark on loopback: a master and workers as processes, from the PySpark that pip installed.

    with StandaloneCluster.running(tmp_path) as cluster:
        cluster.submit(job, "argument")              # spark-submit, with our package shipped with the job

The machines have a Python with everything that Strandline needs, but without Strandline. A job gets Strandline through
`--py-files`, as a wheel whose name ends in `.zip`: Spark copies a `.whl` to executors without adding it to their path. Every
process is ended by its id. Executors are children of the workers, by which a test finds and kills them.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
from class_archive import quick_start
from installed import build, copy_sources

from strandline.pipeline.java import use_java

START_TIMEOUT_S = 60
SPARK_HOME = Path(pyspark.__file__).parent
QUICK_START = quick_start()
MASTER, WORKER = "org.apache.spark.deploy.master.Master", "org.apache.spark.deploy.worker.Worker"
_MASTER_URL = re.compile(r"(spark://127\.0\.0\.1:\d+)")
_WEB_UI = re.compile(r"MasterUI' on port (\d+)")


class StandaloneCluster:
    def __init__(self, folder: Path, *, workers: int = 2, cores: int = 1, memory: str = "1g") -> None:
        self.folder = folder
        self._size = (workers, cores, memory)
        self._environ = environment()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.url = ""
        """URL of the master, for `--master`."""
        self.package = folder / "strandline.zip"
        self.wheel = Path()
        """The same archive under its name as a wheel."""

    @classmethod
    @contextmanager
    def running(cls, folder: Path, **size: Any) -> Iterator[StandaloneCluster]:
        cluster = cls(folder, **size)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()

    def start(self) -> None:
        """Starts master and workers, and waits until the master reports all workers as alive."""
        workers, cores, memory = self._size
        self.folder.mkdir(parents=True, exist_ok=True)
        self._start("master", MASTER, "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        self.url = self._logged("master", _MASTER_URL)
        web = self._logged("master", _WEB_UI)
        for n in range(workers):
            work = ("--work-dir", str(self.folder / f"work-{n}"), "--cores", str(cores), "--memory", memory)
            self._start(f"worker-{n}", WORKER, "--host", address(n), "--webui-port", "0", *work, self.url)
        self.wheel = build_wheel(self.folder / "wheel")
        self.package.write_bytes(self.wheel.read_bytes())
        until(lambda: len(alive_workers(web)) == workers, f"{workers} workers alive", START_TIMEOUT_S)

    def stop(self) -> None:
        """Ends the workers, and with them their executors, and then the master."""
        for process in reversed(self._processes.values()):
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    # -- jobs ---------------------------------------------------------------------------------------------------------

    def submit(
        self, job: Path, *arguments: str, timeout_s: float = 180, conf: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Runs a job as a user does: `spark-submit --py-files strandline.zip job.py`."""
        command = [*self.submit_command(conf), str(job), *arguments]
        return subprocess.run(
            command, env=self.driver_environ(), cwd=self.folder, capture_output=True, text=True, timeout=timeout_s, check=False
        )

    def submit_command(self, more: Mapping[str, str] | None = None) -> list[str]:
        conf = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.ui.enabled": "false"}
        conf |= {"spark.executor.memory": "512m", "spark.log.level": "ERROR", "spark.executor.cores": "1"}
        conf |= dict.fromkeys(("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions"), QUICK_START) | dict(
            more or {}
        )
        settings = [word for key, value in conf.items() for word in ("--conf", f"{key}={value}")]
        return [str(SPARK_HOME / "bin" / "spark-submit"), "--master", self.url, "--py-files", str(self.package), *settings]

    def driver_environ(self) -> dict[str, str]:
        """The driver's environment. `PYTHONPATH` is set because Spark 4.3 passes no `--py-files` to the process that plans a
        stream."""
        python = {"PYSPARK_PYTHON": str(self.python), "PYSPARK_DRIVER_PYTHON": str(self.python)}
        return {**self._environ, **python, "PYTHONPATH": str(self.package)}

    @property
    def python(self) -> Path:
        """The Python of the cluster's machines."""
        folder = self.folder / "python"
        if not folder.exists():
            make_python(folder)
        return folder / "bin" / "python"

    def executors(self) -> list[int]:
        """Process ids of the running executors."""
        workers = {process.pid for name, process in self._processes.items() if name.startswith("worker")}
        return sorted(pid for worker in workers for pid in children(worker))

    # -- processes ----------------------------------------------------------------------------------------------------

    def _start(self, name: str, *words: str) -> None:
        command = [str(SPARK_HOME / "bin" / "spark-class"), *words]
        with open(self.folder / f"{name}.log", "wb") as log:
            self._processes[name] = subprocess.Popen(
                command, env=self._environ, cwd=self.folder, stdout=log, stderr=log, start_new_session=True
            )

    def _logged(self, name: str, pattern: re.Pattern[str]) -> str:
        """Waits until the log of a process matches the pattern; returns the match."""
        path, found = self.folder / f"{name}.log", list[str]()

        def look() -> bool:
            code = self._processes[name].poll()
            text = path.read_text()
            assert code is None, f"{name} ended with {code}: {text[-2000:]}"
            found[:] = pattern.findall(text)
            return bool(found)

        until(look, f"{pattern.pattern} in {path}", START_TIMEOUT_S)
        return found[0]


def address(worker: int) -> str:
    """An address of its own for each worker, because Spark starts no speculative copy on the same machine. Systems other than
    Linux have only one loopback address."""
    return f"127.0.0.{worker + 1}" if sys.platform == "linux" else "127.0.0.1"


def environment() -> dict[str, str]:
    """The environment of Spark's daemons and drivers: one machine, no name lookups, and no settings of the test's own Python."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("PYSPARK_", "PYTHONPATH", "SPARK_"))}
    environ |= {"SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m"}
    environ["SPARK_DAEMON_JAVA_OPTS"] = QUICK_START
    use_java(environ)
    return environ


def make_python(folder: Path) -> None:
    """Creates a virtual environment that uses the packages of this one, but not Strandline: that is installed here as editable,
    by a `.pth` file, which Python ignores in another environment's site folder."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "machine.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")) + "\n")


def build_wheel(folder: Path) -> Path:
    """Builds the wheel from a copy of the sources, so that concurrent builds do not share a folder `build/`."""
    return build("build_wheel", copy_sources(folder / "source"), folder)


def alive_workers(web_port: str) -> list[Any]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{web_port}/json/", timeout=5) as answer:
            state = json.load(answer)
    except OSError:
        return []
    return [worker for worker in state["workers"] if worker["state"] == "ALIVE"]


def children(pid: int) -> list[int]:
    """The children of a process, by the parent id in `/proc/<pid>/stat`. That field follows the name, which may contain any
    characters."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue  # The process has ended.
        if int(text.rpartition(")")[2].split()[1]) == pid:
            found.append(int(stat.parent.name))
    return found


def kill(pid: int) -> None:
    """Sends SIGKILL; does nothing if the process has ended."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def until(condition: Callable[[], bool], what: str, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s:g} s"
        time.sleep(0.05)
