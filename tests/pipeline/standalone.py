"""A real standalone cluster of Spark on loopback: a master and workers as processes, out of the PySpark that pip installed.

    with StandaloneCluster.running(tmp_path) as cluster:
        cluster.submit(job, "argument")              # spark-submit, with our package shipped beside the job

Its machines have a Python of their own, with everything that Strandline needs and without Strandline: what a job finds of it
there came with `--py-files`, as a wheel that is called `.zip` (Spark takes no others: it would copy a `.whl` to each executor
and leave it out of the path). Everything that is started is ended by its id. Executors are processes of the workers; they are
found by their parent, so a test can kill one.
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
        """The master's, for `--master`."""
        self.package = folder / "strandline.zip"
        self.wheel = Path()
        """The same, under the name that a wheel has."""

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
        """Ready when the master says that all workers are alive."""
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
        """Workers before the master; with a worker go its executors."""
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
        """As a user does it: `spark-submit --py-files strandline.zip job.py`."""
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
        """`PYTHONPATH`, too: to the process that plans a stream, beside the driver, Spark 4.3 hands no `--py-files`."""
        python = {"PYSPARK_PYTHON": str(self.python), "PYSPARK_DRIVER_PYTHON": str(self.python)}
        return {**self._environ, **python, "PYTHONPATH": str(self.package)}

    @property
    def python(self) -> Path:
        """Of the cluster's machines: with what Strandline needs, and without Strandline."""
        folder = self.folder / "python"
        if not folder.exists():
            make_python(folder)
        return folder / "bin" / "python"

    def executors(self) -> list[int]:
        """The process ids of the executors that run."""
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
        """What a process says about itself in its log."""
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
    """One for each worker: Spark starts no speculative copy of a task on the machine that runs it. Other systems than Linux
    have one address on loopback."""
    return f"127.0.0.{worker + 1}" if sys.platform == "linux" else "127.0.0.1"


def environment() -> dict[str, str]:
    """For Spark's daemons and drivers: one machine, no names to look up, and nothing that the tests' own Python would add."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("PYSPARK_", "PYTHONPATH", "SPARK_"))}
    environ |= {"SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m"}
    environ["SPARK_DAEMON_JAVA_OPTS"] = QUICK_START
    use_java(environ)
    return environ


def make_python(folder: Path) -> None:
    """A virtual environment that sees the packages of this one, but not Strandline, which is installed here as an editable
    one: by a `.pth` file, and such files count only in a site folder of one's own."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "machine.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")) + "\n")


def build_wheel(folder: Path) -> Path:
    """From a copy of the sources, so that several builds at a time do not meet in one `build/`."""
    return build("build_wheel", copy_sources(folder / "source"), folder)


def alive_workers(web_port: str) -> list[Any]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{web_port}/json/", timeout=5) as answer:
            state = json.load(answer)
    except OSError:
        return []
    return [worker for worker in state["workers"] if worker["state"] == "ALIVE"]


def children(pid: int) -> list[int]:
    """By what /proc says: the fourth field of `stat`, behind a name that may hold anything."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue  # It has ended.
        if int(text.rpartition(")")[2].split()[1]) == pid:
            found.append(int(stat.parent.name))
    return found


def kill(pid: int) -> None:
    """SIGKILL; that it has ended by itself meanwhile is no matter."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def until(condition: Callable[[], bool], what: str, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s:g} s"
        time.sleep(0.05)
