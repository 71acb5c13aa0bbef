"""Java programs for suites: the libraries of Apache Kafka from its launcher, others from Maven Central, and Java processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from suite import in_cache

ROOT = Path(__file__).parents[3]
KAFKA = "4.3.1"


LAUNCHER = Path(os.environ.get("STRANDLINE_KAFKA_TOOLS") or ROOT.parent / "shared" / "tools" / "apache-kafka")
"""The script that runs Apache Kafka and its tools."""


def missing() -> str | None:
    """The reason why this machine cannot run a suite with Java, or None."""
    if not LAUNCHER.exists():
        return f"there is no launcher of Apache Kafka at {LAUNCHER} (STRANDLINE_KAFKA_TOOLS)"
    return next((f"there is no {program}" for program in ("java", "mvn") if shutil.which(program) is None), None)


def kafka_libraries() -> str:
    """The folder with the jars of Apache Kafka."""
    return subprocess.run([str(LAUNCHER), "jars"], capture_output=True, text=True, check=True).stdout.split()[-1]


def artifact(name: str) -> Path:
    """A jar from Maven Central, as group:artifact:version. It is downloaded once."""
    _, short, version = name.split(":")
    with in_cache(f"jars/{short}-{version}.jar") as path:
        if not path.exists():
            command = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={name}", f"-DoutputDirectory={path.parent}"]
            subprocess.run(command, check=True, stdout=sys.stderr)
    return path


def java(class_path: list[str], program: str, *arguments: str, log: Path) -> subprocess.Popen[bytes]:
    """Start a class, or a file with Java source. Its standard input is a pipe, and its output is appended to the log."""
    config = log.with_name("log4j2.xml")
    config.write_text(
        '<Configuration><Appenders><Console name="c"><PatternLayout pattern="%d %p %m (%c)%n"/></Console></Appenders>'
        '<Loggers><Root level="WARN"><AppenderRef ref="c"/></Root></Loggers></Configuration>'
    )
    command = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Dlog4j2.configurationFile={config}"]
    with log.open("ab") as output:
        return subprocess.Popen(
            [*command, "-cp", ":".join(class_path), program, *arguments], stdin=subprocess.PIPE, stdout=output, stderr=output
        )


def end(process: subprocess.Popen[bytes], seconds: float = 20) -> None:
    """End a program by closing its standard input; kill it if it does not end."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
