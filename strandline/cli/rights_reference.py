"""Prints the table of `docs/authorization.md`: `python -m strandline.cli.rights_reference`."""

from __future__ import annotations

from strandline.controller.metadata.security.rights import RIGHTS
from strandline.protocol.apis import APIS


def table() -> str:
    """The rights of every API, in the order of their names."""
    rows = sorted((api.name, RIGHTS[key].text) for key, api in APIS.items())
    return "\n".join(["| API | right |", "|---|---|", *(f"| {name} | {text} |" for name, text in rows)]) + "\n"


if __name__ == "__main__":
    print(table(), end="")
