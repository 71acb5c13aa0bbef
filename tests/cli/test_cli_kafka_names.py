"""The options of Kafka's own tools are understood where their users type them."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from test_cli_examples import LEAVES

from strandline.cli.kafka_names import OF_COMMAND, translated


def parsed(path: str, words: str) -> dict[str, Any]:
    """The parameters of a command from these words."""
    return dict(LEAVES[path].make_context(path, shlex.split(words)).params)


@pytest.mark.parametrize(
    ("path", "kafkas", "ours"),
    [
        (
            "topic create",
            "--bootstrap-server h:1 --topic t --partitions 3 --replication-factor 2 --config a=1 --config b=2 --if-not-exists",
            "t -b h:1 -p 3 -r 2 -c a=1 -c b=2 --if-not-exists",
        ),
        ("topic describe", "--topic t --under-replicated-partitions", "t --under-replicated"),
        ("topic describe", "--unavailable-partitions --at-min-isr-partitions", "--unavailable --at-min-isr"),
        ("topic alter", "--topic=t --add-config a=1,b=[x,y] --delete-config c,d", "t -c a=1 -c b=x,y --unset c --unset d"),
        ("topic delete", "--topic t --if-exists --yes", "t --if-exists --yes"),
        ("topic list", "--bootstrap-server=h:1", "-b h:1"),
        ("consume", "--topic t --from-beginning --max-messages 5", "-t t --from beginning -n 5"),
        ("consume", "--topic t --partition 2 --offset 7", "-t t -p 2 --from 7"),
        ("produce", "--topic t --compression-codec zstd --request-required-acks 1", "-t t --compression zstd --acks 1"),
        ("config get", "--entity-type topics --entity-name t", "topic t"),
        ("config set", "--entity-type brokers --entity-name 1 --add-config a=1,b=[x,y]", "broker 1 a=1 b=x,y"),
        ("config set", "--entity-type groups --entity-name g --add-config a=1", "group g a=1"),
        ("config unset", "--entity-type topics --entity-name t --delete-config a,b", "topic t a b"),
        ("log-dirs describe", "--broker-list 1,2 --topic-list t", "--broker 1 --broker 2 --topic t"),
        ("group describe", "--group g --members --verbose", "g --members"),
        ("group seek", "--group g --reset-offsets --to-earliest --topic t:0,1 --execute", "g --to earliest -t t:0,1 --yes"),
        ("group seek", "--group g --reset-offsets --shift-by -5 --all-topics --dry-run", "g --to shift:-5 --dry-run"),
        ("group seek", "--group g --to-datetime 2026-01-01T12:00:00.000", "g --to @2026-01-01T12:00:00.000"),
        ("group seek", "--group g --reset-offsets --by-duration P1DT2H30M", "g --to @-1d2h30m"),
        ("group seek", "--group g --reset-offsets --to-current --export --all-topics", "g --to current --export"),
        ("group seek", "--group g --reset-offsets --from-file f.csv --execute", "g --from-file f.csv --yes"),
        ("group delete-offsets", "--group g --delete-offsets --topic t:0,1 --topic u", "g -t t:0,1 -t u"),
        ("transaction list", "--duration-filter 5000 --transactional-id-pattern a.*", "--longer-than 5000ms --pattern a.*"),
        ("transaction describe", "--transactional-id a", "a"),
        ("transaction abort", "--topic t --partition 0 --start-offset 5", "t 0 --start-offset 5"),
        ("elect", "--election-type PREFERRED --topic t --partition 0", "--preferred t 0"),
        ("elect", "--election-type preferred --all-topic-partitions", "--preferred --all"),
    ],
    ids=lambda words: words[:40],
)
def test_kafkas_options_mean_the_same_as_ours(path: str, kafkas: str, ours: str) -> None:
    assert parsed(path, kafkas) == parsed(path, ours)


def test_value_of_an_option_is_never_translated() -> None:
    words = ["--key", "--bootstrap-server", "--", "--bootstrap-server"]
    assert translated("produce", words, {"--key"}, {"--key"}) == words


def test_name_that_a_command_has_itself_is_kept() -> None:
    """`consume --topic` is an option of ours, too."""
    assert translated("consume", ["--topic", "t"], {"--topic"}, {"--topic"}) == ["--topic", "t"]


def test_every_translation_is_one_of_an_existing_command() -> None:
    assert set(OF_COMMAND) <= set(LEAVES)
