"""`strandline config`: the configuration of a topic or broker, and every key with its default, unit and meaning."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strandline.cli.common import (
    CONNECT_TIMEOUT_MS,
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    Json,
    Wide,
    fail,
    new_app,
    print_json,
    print_table,
    run,
)
from strandline.cli.config_table import SOURCES, is_given
from strandline.protocol.errors import UsageError

if TYPE_CHECKING:
    from strandline.client import ConfigEntry

app = new_app("Describe the configuration of topics and brokers, or list the keys.")


class Kind(StrEnum):
    topic = "topic"
    broker = "broker"


@app.command()
def describe(
    kind: Annotated[Kind, typer.Argument(metavar="topic|broker", help="Describe a topic or a broker.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="The topic, or the broker's id.")],
    all_keys: Annotated[bool, typer.Option("--all", help="Show the keys with default values too.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    wide: Wide = False,
    json: Json = False,
) -> None:
    """Show the configuration of a topic or broker, and the source of each value. Without --all or --json, only the values
    that are not defaults."""
    configs = run(_ask(bootstrap, kind.value, name))
    if json:
        document = [
            {"name": c.name, "value": c.value, "source": c.source, "read_only": c.read_only, "type": c.type} for c in configs
        ]
        print_json({"resource_type": kind.value, "resource_name": name, "configs": document})
        return
    shown = configs if all_keys else [c for c in configs if is_given(c)]
    columns = ("key", "value", "source", "meaning")[: 4 if wide else 3]
    rows = [(c.name, c.value, SOURCES.get(c.source, c.source), c.documentation)[: len(columns)] for c in shown]
    if rows:
        print_table(columns, rows, wide=wide)
    hidden = len(configs) - len(shown)
    if hidden:
        print(f"{hidden} keys have default values; --all shows them")


async def _ask(bootstrap: str, kind: str, name: str) -> list[ConfigEntry]:
    from strandline.client import Admin

    if kind == "broker" and not name.isdecimal():
        raise UsageError(f"a broker is named by its id, a number, not {name!r}")
    async with Admin(bootstrap_servers=bootstrap, connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
        if kind == "topic":
            return await admin.describe_configs("topic", name)
        return await admin.describe_configs("broker", name)


@app.command()
def keys(
    filter: Annotated[str, typer.Argument(metavar="TEXT", help="Only keys that contain this text.")] = "",
    wide: Wide = False,
    json: Json = False,
) -> None:
    """List every key of brokers, controllers and topics with its default, unit and meaning."""
    rows = [row for row in _rows() if filter in row["name"]]
    if not rows:
        fail(f"no configuration key contains {filter!r}; `strandline config keys` lists all keys")
    if json:
        print_json({"keys": rows})
        return
    columns = ("key", "used by", "type", "default", "unit", "meaning")
    print_table(
        columns,
        [(r["name"], r["used_by"], r["type"], r["default"], r["unit"], r["meaning"].replace("\n", " ")) for r in rows],
        wide=wide,
        spare=("type", "used by", "unit"),
    )


def _rows() -> list[dict[str, Any]]:
    from strandline.controller.metadata.config_keys import REQUIRED, TOPIC_CONFIGS, ConfigKey
    from strandline.node import keys_of

    def row(key: ConfigKey, used_by: list[str]) -> dict[str, Any]:
        default = "(required)" if key.default is REQUIRED else key.text(key.default)
        return {
            "name": key.name,
            "used_by": used_by,
            "type": key.type,
            "default": default,
            "unit": key.unit,
            "meaning": key.meaning,
        }

    found: dict[tuple[str, str], dict[str, Any]] = {}
    for where, keys in (("broker", keys_of("broker")), ("controller", keys_of("controller")), ("topic", TOPIC_CONFIGS.values())):
        for key in keys:
            kind = "topic" if where == "topic" else "node"
            found.setdefault((kind, key.name), row(key, []))["used_by"].append(where)
    return [found[name] for name in sorted(found)]
