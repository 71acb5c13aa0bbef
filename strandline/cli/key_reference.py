"""docs/configuration-keys.md: `python -m strandline.cli.key_reference > docs/configuration-keys.md`.

`strandline config keys` prints the same keys. The page has in addition which values each key accepts.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from strandline.controller.metadata.config_keys import INT_MAX, LONG_MAX, TOPIC_CONFIGS, ConfigKey
from strandline.controller.metadata.group_configs import BOUNDS, GROUP_CONFIGS
from strandline.node import keys_of

_INTRODUCTION = """\
# Configuration keys

Generated from the tables of keys by `python -m strandline.cli.key_reference`; do not edit.

Names, types, defaults and units are Kafka's wherever Kafka has the key. Where a default is another one, the meaning says so.
[configuration.md](configuration.md) explains which of several values counts, and how to change one while the nodes run;
`strandline config keys TEXT` searches this list.

## Keys of topics

A topic's key can be changed at any time. A broker's key, in the second column, holds the default of all topics.
"""

_GROUPS = """
## Keys of groups

A consumer group's key can be changed at any time, also before the group exists. A broker's key, in the second column, holds the
default of all groups. These keys act on members of the newer protocol.
"""

_NODES = """
## Keys of {role}s

"Change" says where the key can be changed while the nodes run: for the whole cluster, for one broker, or by a restart only.
"""

_UNLIMITED = (str(INT_MAX), str(LONG_MAX), str(sys.float_info.max))
"""Defaults that no value in practice reaches."""


def reference() -> str:
    """The whole page."""
    parts = [_INTRODUCTION, *_table_above_brokers(TOPIC_CONFIGS.values())]
    parts += [_GROUPS, *_table_above_brokers(GROUP_CONFIGS.values())]
    for role in ("broker", "controller"):
        defaults = {key.synonym for key in TOPIC_CONFIGS.values()} if role == "broker" else set()
        keys = [key for key in keys_of(role) if key.name not in defaults]
        parts += [_NODES.format(role=role), *_node_table(keys)]
    return "".join(parts)


def _table_above_brokers(keys: Iterable[ConfigKey]) -> Iterator[str]:
    yield "\n| key | on a broker | default | accepts | meaning |\n|---|---|---|---|---|\n"
    for key in sorted(keys, key=lambda key: key.name):
        yield _row(key, f"`{key.synonym}`" if key.synonym else "")


def _node_table(keys: Iterable[ConfigKey]) -> Iterator[str]:
    yield "\n| key | change | default | accepts | meaning |\n|---|---|---|---|---|\n"
    for key in sorted(keys, key=lambda key: key.name):
        yield _row(key, key.update)


def _row(key: ConfigKey, second: str) -> str:
    meaning = " ".join(key.meaning.split()).replace("|", "\\|").replace("*", "\\*")
    return f"| `{key.name}` | {second} | {_default(key)} | {_accepts(key)} | {meaning} |\n"


def _default(key: ConfigKey) -> str:
    if key.is_required:
        return "(required)"
    text = key.text(key.default)
    if text in _UNLIMITED:
        return "no limit"
    return f"`{text}` {key.unit}".strip() if text else ""


def _accepts(key: ConfigKey) -> str:
    """The type, and which of its values the key accepts."""
    if key.name in BOUNDS:
        bounds = BOUNDS[key.name]
        return f"{key.type}, `{bounds.min_key}` to `{bounds.max_key}` of the controllers"
    if key.choices:
        choices = ", ".join(f"`{choice}`" for choice in key.choices)
        return f"list of {choices}" if key.type == "list" else choices
    if key.min is not None and key.max is not None:
        return f"{key.type}, {key.min} to {key.max}"
    if key.min is not None:
        return f"{key.type}, at least {key.min}"
    return f"{key.type}, at most {key.max}" if key.max is not None else key.type


if __name__ == "__main__":
    sys.stdout.write(reference())
