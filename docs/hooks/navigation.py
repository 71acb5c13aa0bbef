"""The navigation of the site: the lists of docs/README.md.

That page shows a reader on GitHub what there is. So the site, `llms.txt` and GitHub have the same pages in the same order, and
a new page needs one line:

    ## Tutorials                                                                a section
    - [A first consumer group](consumer-groups-tutorial.md): members, lag.      a page: its title, its file, what it is about
"""

from __future__ import annotations

import posixpath
import re
from typing import NamedTuple

INDEX = "docs/README.md"

_SECTION = re.compile(r"^## (.+?)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_PAGE = re.compile(r"^- \[([^\]]+)\]\(([^)\s#]+)\): (.+?)(?=^- |^\s*$|\Z)", re.MULTILINE | re.DOTALL)


class Page(NamedTuple):
    title: str
    path: str
    """The page's file, relative to the root of the repository."""
    about: str
    """One sentence, without line breaks; it may contain Markdown."""


class Section(NamedTuple):
    title: str
    pages: list[Page]


def sections(index: str) -> list[Section]:
    """The sections of the index that list pages. `index`: the text of docs/README.md."""
    found = [Section(title, [_page(*match) for match in _PAGE.findall(text)]) for title, text in _SECTION.findall(index)]
    return [section for section in found if section.pages]


def _page(title: str, link: str, about: str) -> Page:
    return Page(title, posixpath.normpath(posixpath.join(posixpath.dirname(INDEX), link)), " ".join(about.split()))
