"""Parse Python source without garbage collections, because Python 3.11 fails otherwise.

Until Python 3.11.8 all parsers of a process count the depth of their recursion in one variable (gh-106905). If a second
parse begins while the first one builds its tree, the first one raises "SystemError: AST constructor recursion depth
mismatch". That needs only a collection: Hypothesis is called back by each, so another thread may run then, for example one
that logs a traceback, whose lines Python 3.11 parses. From Python 3.12 on, no collection happens within a parse.
"""

from __future__ import annotations

import ast
import functools
import gc
import sys
import threading
from typing import Any

_one_parse = threading.RLock()


def install() -> None:
    """Replace `ast.parse`, if this Python needs it."""
    if sys.version_info < (3, 12):
        ast.parse = _without_collections(ast.parse)


def _without_collections(parse: Any) -> Any:
    @functools.wraps(parse)
    def parse_alone(*args: Any, **kwargs: Any) -> Any:
        with _one_parse:
            enabled = gc.isenabled()
            gc.disable()
            try:
                return parse(*args, **kwargs)
            finally:
                if enabled:
                    gc.enable()

    return parse_alone
