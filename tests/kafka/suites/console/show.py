"""The console of `run.py`, without a terminal: `python show.py BOOTSTRAP TOPIC` prints the rows of its tables as JSON.

It opens the list of topics, the description of a topic with its groups, and the records of the topic.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from kaskade.admin import KaskadeAdmin
from kaskade.consumer import KaskadeConsumer
from kaskade.deserializers import Deserialization
from textual.app import App
from textual.widgets import DataTable, TabbedContent

SECONDS = 20.0
SIZE = (200, 60)


def rows(app: App[Any]) -> list[list[str]]:
    """The cells of all tables on the screen."""
    tables = app.screen.query(DataTable)
    return [[str(cell) for cell in table.get_row_at(i)] for table in tables for i in range(table.row_count)]


async def rows_with(app: App[Any], pilot: Any, text: str) -> list[list[str]]:
    """The rows, once the text is in one of them and no metric is still loading."""
    seen: list[list[str]] = []
    for _ in range(int(SECONDS / 0.2)):
        await pilot.pause(0.2)
        seen = rows(app)
        found = [row for row in seen if any(text in cell for cell in row)]
        if found and "…" not in [cell for row in found for cell in row]:
            break
    return seen


async def topics(bootstrap: str, topic: str) -> dict[str, list[list[str]]]:
    app = KaskadeAdmin({"bootstrap.servers": bootstrap})
    async with app.run_test(size=SIZE) as pilot:
        listed = await rows_with(app, pilot, topic)
        table = app.screen.query_one("#topics-table", DataTable)
        table.move_cursor(row=[row[0] for row in listed].index(topic))
        table.focus()
        await pilot.press("d")
        await pilot.pause(2)
        described = []
        for tabs in app.screen.query(TabbedContent):
            for pane in [pane.id for pane in tabs.query("TabPane")]:
                tabs.active = pane or ""
                await pilot.pause(0.5)
                described += rows(app)
        return {"topics": listed, "description": described}


async def records(bootstrap: str, topic: str) -> list[list[str]]:
    settings = {"bootstrap.servers": bootstrap, "auto.offset.reset": "earliest", "group.id": "console"}
    app = KaskadeConsumer(topic, settings, {}, {}, {}, Deserialization.STRING, Deserialization.STRING)
    async with app.run_test(size=SIZE) as pilot:
        return await rows_with(app, pilot, "value-9")


async def main(bootstrap: str, topic: str) -> None:
    shown = {**await topics(bootstrap, topic), "records": await records(bootstrap, topic)}
    print(json.dumps(shown), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
