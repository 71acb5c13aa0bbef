"""`strandline config keys`: every key with default, unit and meaning, straight from the tables that check them."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from strandline.cli.common import Json, new_app, print_json, print_table

app = new_app("List the configuration keys.")


@app.callback()
def _group() -> None:
    """List the configuration keys."""


@app.command()
def keys(
    filter: Annotated[str, typer.Argument(help="Only keys that contain this text.")] = "",
    json: Json = False,
) -> None:
    """List every key of brokers, controllers and topics with its default, unit and meaning."""
    rows = [row for row in _rows() if filter in row["name"]]
    if json:
        print_json({"keys": rows})
        return
    columns = ("key", "used by", "type", "default", "unit", "meaning")
    print_table(
        columns, [(r["name"], r["used_by"], r["type"], r["default"], r["unit"], r["meaning"].replace("\n", " ")) for r in rows]
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
