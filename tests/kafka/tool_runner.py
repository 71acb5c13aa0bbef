"""Kafka's command line tools in one JVM (`ToolRunner.java`): a tool then takes a fraction of a second, less than a start of
Java."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

HERE = Path(__file__).parent
TOOLS = {
    "kafka-acls": "AclCommand",
    "kafka-broker-api-versions": "BrokerApiVersionsCommand",
    "kafka-cluster": "ClusterTool",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-console-consumer": "consumer.ConsoleConsumer",
    "kafka-console-producer": "ConsoleProducer",
    "kafka-consumer-groups": "consumer.group.ConsumerGroupCommand",
    "kafka-consumer-perf-test": "ConsumerPerformance",
    "kafka-delete-records": "DeleteRecordsCommand",
    "kafka-e2e-latency": "EndToEndLatency",
    "kafka-features": "FeatureCommand",
    "kafka-get-offsets": "GetOffsetShell",
    "kafka-groups": "GroupsCommand",
    "kafka-leader-election": "LeaderElectionCommand",
    "kafka-log-dirs": "LogDirsCommand",
    "kafka-metadata-quorum": "MetadataQuorumCommand",
    "kafka-producer-perf-test": "ProducerPerformance",
    "kafka-reassign-partitions": "reassign.ReassignPartitionsCommand",
    "kafka-streams-application-reset": "StreamsResetter",
    "kafka-topics": "TopicCommand",
    "kafka-transactions": "TransactionsCommand",
    "kafka-verifiable-consumer": "VerifiableConsumer",
    "kafka-verifiable-producer": "VerifiableProducer",
}
# A tool's errors go to its own standard error. Java's System.err is that only while the tool runs, so the appender follows it.
LOGGING = """<Configuration><Appenders><Console name="c" target="SYSTEM_ERR" follow="true">
<PatternLayout pattern="[%d] %p %m (%c)%n"/></Console></Appenders>
<Loggers><Root level="WARN"><AppenderRef ref="c"/></Root></Loggers></Configuration>"""


class ToolResult(NamedTuple):
    code: int
    """-1 if it did not end in time."""
    out: str
    err: str


class ToolRunner:
    """`script`: the launcher of Apache Kafka, which has the libraries. Tools run one at a time, except those in the
    background."""

    def __init__(self, script: str, folder: Path) -> None:
        libraries = subprocess.run([script, "jars"], capture_output=True, text=True, check=True).stdout.split()[-1]
        logging = folder / "log4j2.xml"
        logging.write_text(LOGGING)
        command = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.security.manager=allow"]
        command += [f"-Dlog4j2.configurationFile={logging}", "-cp", f"{libraries}/*", str(HERE / "ToolRunner.java")]
        self._log = (folder / "tool_runner.log").open("wb")
        self._java = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, trace: TracebackType | None) -> None:
        """Close the input of the JVM, which ends it."""
        assert self._java.stdin is not None
        self._java.stdin.close()
        try:
            self._java.wait(10)
        except subprocess.TimeoutExpired:
            self._java.kill()
            self._java.wait()
        self._log.close()

    def run(self, tool: str, arguments: list[str], input_text: str = "", seconds: float = 30) -> ToolResult:
        return ToolResult(**self._ask(self._request(tool, arguments, input_text) | {"seconds": seconds}))

    def start(self, name: str, tool: str, arguments: list[str], input_text: str = "") -> None:
        """Run a tool in the background. `wait` gets its result by this name."""
        self._ask(self._request(tool, arguments, input_text) | {"background": name})

    def wait(self, name: str, seconds: float = 30) -> ToolResult:
        return ToolResult(**self._ask({"wait": name, "seconds": seconds}))

    @staticmethod
    def _request(tool: str, arguments: list[str], input_text: str) -> dict[str, Any]:
        name = TOOLS[tool]
        name = name if name.startswith("kafka.") else f"org.apache.kafka.tools.{name}"
        return {"tool": name, "args": arguments, "input": input_text}

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._java.stdin is not None
        assert self._java.stdout is not None
        self._java.stdin.write(json.dumps(request) + "\n")
        self._java.stdin.flush()
        line = self._java.stdout.readline()
        if not line:
            raise RuntimeError(f"the JVM of Kafka's tools ended with exit code {self._java.wait()}; see tool_runner.log")
        answer: dict[str, Any] = json.loads(line)
        return answer
