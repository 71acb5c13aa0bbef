"""Sends the same odd requests to a real Kafka and to Strandline, and prints where their error codes or values differ.

    python tests/kafka/compare_with_kafka.py [--seed 1] [--rounds 10] [--requests 40] [--apis OffsetCommit,...]

It starts both clusters (a real Kafka needs STRANDLINE_KAFKA_TOOLS), unless `--kafka` and `--ours` are addresses of running
brokers: one broker each, with the settings of `both_clusters`. A difference that is not in `known_differences.toml` is printed
with the command that repeats its round, and the exit code is then 1.

Values are compared until the first answer of a round with other codes to a request that changes something: from then on, the two
sides have other records, offsets or members.

While coordinators are loading, requests fail with a temporary error and are sent again; only the last answer is compared.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "common"), str(HERE / "suites")]

import suite  # noqa: E402
from compared_answers import (  # noqa: E402
    CLOSED,
    NO_ANSWER,
    Difference,
    Known,
    codes_of,
    differences,
    read_known,
    unexplained,
    value_differences,
    values_of,
)
from kafka_settings import OURS, SETTINGS  # noqa: E402
from odd_requests import LEFT_OUT, Names, OddRequests, Round, set_up  # noqa: E402
from random_messages import plain  # noqa: E402
from real_kafka_cluster import RealKafkaCluster  # noqa: E402
from wire import KafkaWire, request_frame, response_fields  # noqa: E402

from strandline.broker.kafka.apis import KAFKA_APIS  # noqa: E402
from strandline.broker.kafka.codec import Fields  # noqa: E402
from strandline.protocol.errors import ErrorCode  # noqa: E402

KNOWN = HERE / "known_differences.toml"
SCRIPT = os.environ.get("STRANDLINE_KAFKA_TOOLS", str(HERE.parents[2] / "shared/tools/apache-kafka"))
ANSWER_S = 8.0
AGAIN_S, TIMES = 0.05, 100
PASSING = {
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
}
"""Temporary errors. A request with one of them is sent again."""
ONLY_READS = ("Describe", "List", "Fetch", "Metadata", "OffsetFetch", "OffsetForLeaderEpoch", "ApiVersions", "FindCoordinator")
"""The APIs whose names begin with these change nothing."""
IN_SET_UP = PASSING | {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
"""Additional temporary errors while a round is set up: a broker may not know a new topic yet."""


class Side:
    """One of the two clusters."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._wire: KafkaWire | None = None
        self.names = Names()

    async def begin(self, round_: Round) -> None:
        self.names = await set_up(self._ask_in_set_up, round_)

    async def _ask_in_set_up(self, key: int, version: int, fields: dict[str, Any]) -> Fields:
        answer = await self._ask(key, version, fields, frozenset(IN_SET_UP))
        assert not isinstance(answer, str), f"no answer to API {key} while the round was set up"
        return answer

    async def ask(self, key: int, version: int, fields: dict[str, Any]) -> Any:
        """Send a request. Returns the answer as plain values, or NO_ANSWER or CLOSED."""
        answer = await self._ask(key, version, self.names.fill(fields), frozenset(PASSING))
        return answer if isinstance(answer, str) else plain(answer)

    async def _ask(self, key: int, version: int, fields: dict[str, Any], passing: frozenset[ErrorCode]) -> Fields | str:
        for _ in range(TIMES):
            answer = await self._ask_once(key, version, fields)
            if isinstance(answer, str) or not passing & set(_codes(plain(answer))):
                break
            await asyncio.sleep(AGAIN_S)
        return answer

    async def _ask_once(self, key: int, version: int, fields: dict[str, Any]) -> Fields | str:
        try:
            if self._wire is None:
                self._wire = await KafkaWire.at(self._address, timeout_s=ANSWER_S).__aenter__()
            self._wire.send_frame(request_frame(key, version, 7, "compared", fields))
            return response_fields(key, version, await self._wire.receive_frame())
        except (ConnectionError, TimeoutError) as e:
            await self.close()
            return NO_ANSWER if isinstance(e, TimeoutError) else CLOSED

    async def close(self) -> None:
        if self._wire is not None:
            wire, self._wire = self._wire, None
            await wire.__aexit__(None, None, None)


def _codes(value: Any) -> Iterator[int]:
    if isinstance(value, list):
        for item in value:
            yield from _codes(item)
    elif isinstance(value, dict):
        for name, part in value.items():
            yield from [part] if name.endswith("error_code") else _codes(part)


@dataclass(slots=True)
class Outcome:
    """The differences that some rounds have found."""

    requests: int = 0
    known: Counter[Difference] = field(default_factory=Counter)
    new: list[str] = field(default_factory=list)
    """Descriptions of differences that are not in `known_differences.toml`."""
    prints_all: bool = False
    """Whether every request is printed."""


async def compare(
    kafka: str,
    ours: str,
    rounds: Sequence[Round],
    requests: int,
    apis: Sequence[int],
    known: Sequence[Known],
    prints_all: bool = False,
) -> Outcome:
    """Play rounds against brokers at two addresses."""
    outcome, sides = Outcome(prints_all=prints_all), (Side(kafka), Side(ours))
    try:
        for round_ in rounds:
            await asyncio.gather(*(side.begin(round_) for side in sides))
            await _play(round_, sides, requests, apis, known, outcome)
    finally:
        for side in sides:
            await side.close()
    return outcome


async def _play(
    round_: Round,
    sides: tuple[Side, Side],
    requests: int,
    apis: Sequence[int],
    known: Sequence[Known],
    outcome: Outcome,
) -> None:
    is_same = True
    for api, version, fields in itertools.islice(OddRequests(round_, apis), requests):
        answers = await asyncio.gather(*(side.ask(api.key, version, fields) for side in sides))
        outcome.requests += 1
        codes = [codes_of(answer, side.names.common) for answer, side in zip(answers, sides, strict=True)]
        found = differences(api.name, *codes)
        is_same = is_same and (not found or api.name.startswith(ONLY_READS))
        if is_same and not found:
            values = [values_of(answer, side.names.common) for answer, side in zip(answers, sides, strict=True)]
            found = value_differences(api.name, *values)
        new = unexplained(found, known)
        outcome.known.update(difference for difference in found if difference not in new)
        if not new and not outcome.prints_all:
            continue
        lines = [f"{api.name} {version}: " + ", ".join(map(str, new))]
        lines += [f"  request  {fields}", f"  Kafka    {answers[0]}", f"  ours     {answers[1]}"]
        if outcome.prints_all:
            print("\n".join(lines))
        if new:
            outcome.new.append("\n".join([*lines, f"  again    {command(round_, requests, apis)}"]))


def command(round_: Round, requests: int, apis: Sequence[int]) -> str:
    """The command that repeats a round."""
    chosen = "" if list(apis) == compared_apis() else " --apis " + ",".join(KAFKA_APIS[key].name for key in apis)
    program = f".venv/bin/python tests/kafka/{Path(__file__).name}"
    return f"{program} --seed {round_.seed} --first {round_.number} --rounds 1 --requests {requests}{chosen}"


def compared_apis() -> list[int]:
    return [key for key in sorted(KAFKA_APIS) if key not in LEFT_OUT]


@contextmanager
def both_clusters(folder: Path, script: str = SCRIPT) -> Iterator[tuple[str, str]]:
    """Start a real Kafka and Strandline, with one broker each; returns their addresses. Topics are not created automatically,
    because later rounds would see them."""
    (folder / "kafka").mkdir()
    kafkas_times = {"group.consumer.session.timeout.ms": 45_000, "group.consumer.heartbeat.interval.ms": 5000}
    settings = {**OURS, **kafkas_times, "auto.create.topics.enable": False}
    with (
        RealKafkaCluster(
            script, folder / "kafka", brokers=1, settings={**SETTINGS, "auto.create.topics.enable": "false"}
        ) as kafka,
        suite.running(suite.LocalCluster(folder / "ours", brokers=1, controllers=1, settings=settings, kafka=True)) as ours,
    ):
        yield kafka.bootstrap, ours.bootstrap


def main() -> int:
    parser = argparse.ArgumentParser(description="compare the error codes of a real Kafka and of Strandline")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="the number of the first round")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--requests", type=int, default=40, help="of each round")
    parser.add_argument("--apis", default="", help="names of APIs, with commas between them; by default all that can be compared")
    parser.add_argument(
        "--print-all", action="store_true", help="print every request with both answers, to see what led to a difference"
    )
    parser.add_argument("--kafka", help="host:port of a broker of a real Kafka that runs already")
    parser.add_argument("--ours", help="host:port of a Kafka listener of Strandline that runs already")
    given = parser.parse_args()
    named = {api.name: key for key, api in KAFKA_APIS.items()}
    apis = sorted(named[name] for name in given.apis.split(",")) if given.apis else compared_apis()
    rounds = [Round(given.seed, number) for number in range(given.first, given.first + given.rounds)]

    def play(kafka: str, ours: str) -> Outcome:
        return asyncio.run(compare(kafka, ours, rounds, given.requests, apis, read_known(KNOWN), given.print_all))

    if given.kafka and given.ours:
        return report(play(given.kafka, given.ours))
    if not Path(SCRIPT).exists():
        print("Not compared: no real Kafka is here. STRANDLINE_KAFKA_TOOLS names the program that starts one.")
        return 0
    with tempfile.TemporaryDirectory(prefix="strandline-compare-") as folder, both_clusters(Path(folder)) as addresses:
        return report(play(*addresses))


def report(outcome: Outcome) -> int:
    for text in outcome.new:
        print(text)
    print(f"{outcome.requests} requests: {len(outcome.new)} with a new difference; {outcome.known.total()} known differences")
    return int(bool(outcome.new))


if __name__ == "__main__":
    sys.exit(main())
