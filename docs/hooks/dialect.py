"""GitHub's Markdown, as the site's Markdown understands it. The pages are written for both; these differ whatever is written:

```console up       GitHub colours by the first word, the tests read the second; the site accepts only one
| `a\\|b` |          in a table, GitHub needs the backslash also in code; the site shows it
## `acks` and fsync the anchor of a heading: lower case, a dash for each blank, no punctuation
"""

from __future__ import annotations

import re

_FENCE = re.compile(r"^( *```\w+) .*$", re.MULTILINE)
_ROW = re.compile(r"^\|.*\|$", re.MULTILINE)
_CODE = re.compile(r"`[^`]+`")


def for_the_site(markdown: str) -> str:
    return _ROW.sub(_without_backslashes, _FENCE.sub(r"\1", markdown))


def _without_backslashes(row: re.Match[str]) -> str:
    return _CODE.sub(lambda code: code[0].replace("\\|", "|"), row[0])


def anchor(heading: str, separator: str = "-") -> str:
    """The anchor of a heading, as GitHub builds it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", separator)
