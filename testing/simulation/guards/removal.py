"""Removes a guard from the running code, or watches it: the function is compiled again with one expression changed.

The code object of the function is replaced, not the function. So every holder of the function (a class, an import by name, a
probe that wraps it) runs the new code at once, and one assignment restores it.

A watched guard reports when it makes a difference, which means that its value differs from that of the expression that would
replace it. A run in which a guard makes no difference is the same without it, and need not be repeated.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import importlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from strandline.protocol.errors import InternalError
from strandline.testing.simulation.guards.catalogue import Guard
from strandline.testing.simulation.observation.wrapping import removed

NOTE = "__strandline_guard__"
"""The name of the builtin function to which watched code passes the values."""
Hits = set[str]

Change = Callable[[Guard, ast.expr, ast.expr], ast.expr]
"""The guard, its expression, and its replacement -> the expression to compile."""


class NoSuchGuard(InternalError):
    """An entry of the catalogue does not match the source."""


@contextlib.contextmanager
def without(guard: Guard) -> Iterator[None]:
    """Remove the guard within this block. Raises `NoSuchGuard`."""
    with _changed([guard], lambda _guard, _expression, replacement: replacement):
        yield


@contextlib.contextmanager
def watched(guards: Iterable[Guard]) -> Iterator[Hits]:
    """Within the block, the numbers of guards that make a difference are added to the set that it yields."""
    hits: Hits = set()

    def note(number: str, value: Any, alternative: Any) -> Any:
        if number not in hits and _differ(value, alternative):
            hits.add(number)
        return value

    setattr(builtins, NOTE, note)
    try:
        with _changed(guards, _noted):
            yield hits
    finally:
        delattr(builtins, NOTE)


def _noted(guard: Guard, expression: ast.expr, replacement: ast.expr) -> ast.expr:
    """The call `note("G01", guard, replacement)`. A replacement that contains a call is not evaluated, and always differs."""
    if any(isinstance(node, ast.Call) for node in ast.walk(replacement)):
        replacement = ast.Constant(NOTE)
    return ast.Call(ast.Name(NOTE, ast.Load()), [ast.Constant(guard.number), expression, replacement], [])


def _differ(value: Any, alternative: Any) -> bool:
    if alternative is None or isinstance(alternative, str):
        return True  # the guard is a call, and nothing replaces it
    if isinstance(alternative, bool):
        return bool(value) is not alternative
    return bool(value != alternative)


# -- code -------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _changed(guards: Iterable[Guard], change: Change) -> Iterator[None]:
    undo: list[tuple[FunctionType, CodeType]] = []
    by_function: dict[tuple[str, str], list[Guard]] = {}
    for guard in guards:
        by_function.setdefault((guard.module, guard.function), []).append(guard)
    with removed():
        try:
            for (module, name), group in by_function.items():
                function = function_of(group[0])
                undo.append((function, function.__code__))
                function.__code__ = _code(module, name, tuple(group), change)
            yield
        finally:
            for function, code in reversed(undo):
                function.__code__ = code


def function_of(guard: Guard) -> FunctionType:
    """The function that holds the guard, without its wrappers."""
    found: Any = importlib.import_module(_module_name(guard.module))
    for name in guard.function.split("."):
        found = vars(found)[name]
    while inside := next((getattr(found, n) for n in ("__wrapped__", "__func__", "fget", "func") if hasattr(found, n)), None):
        found = inside
    assert isinstance(found, FunctionType), f"{guard.place} is no function of Python"
    return found


def _module_name(path: str) -> str:
    return "strandline." + path.removesuffix(".py").replace("/", ".")


@functools.cache
def _source(module: str) -> tuple[str, str]:
    path = importlib.import_module(_module_name(module)).__file__
    assert path is not None
    return path, Path(path).read_text(encoding="utf-8")


def _code(module: str, name: str, guards: tuple[Guard, ...], change: Change) -> CodeType:
    path, source = _source(module)
    tree = ast.parse(source)
    function = _function_node(tree, name)
    if function is None:
        raise NoSuchGuard(f"{module} has no function {name}")
    targets = {id(find(function, guard)): guard for guard in guards}
    _Exchange(targets, change).visit(function)
    code = _nested(compile(ast.fix_missing_locations(tree), path, "exec"), name)
    assert code is not None
    return code


def find(function: ast.AST, guard: Guard) -> ast.expr:
    """The expression of the guard in its function. Raises `NoSuchGuard` if the function contains it never, or more often than
    expected."""
    wanted = ast.dump(ast.parse(guard.guard, mode="eval").body)
    found = [node for node in ast.walk(function) if isinstance(node, ast.expr) and ast.dump(node) == wanted]
    if len(found) <= guard.nth:
        raise NoSuchGuard(f"{guard.number}: {guard.place} does not have {guard.guard!r}; bring the catalogue up to date")
    return found[guard.nth]


def check(guard: Guard) -> None:
    """Raises `NoSuchGuard` if the entry does not match the source."""
    _code(guard.module, guard.function, (guard,), lambda _guard, _expression, replacement: replacement)


def occurrences(guard: Guard) -> int:
    """The number of times that the function contains the expression."""
    function = _function_node(ast.parse(_source(guard.module)[1]), guard.function)
    wanted = ast.dump(ast.parse(guard.guard, mode="eval").body)
    return sum(isinstance(n, ast.expr) and ast.dump(n) == wanted for n in ast.walk(function)) if function is not None else 0


class _Exchange(ast.NodeTransformer):
    def __init__(self, targets: dict[int, Guard], change: Change) -> None:
        self.targets, self.change = targets, change

    def visit(self, node: ast.AST) -> Any:
        guard = self.targets.get(id(node))
        visited = self.generic_visit(node)
        if guard is None:
            return visited
        assert isinstance(visited, ast.expr)
        return ast.copy_location(self.change(guard, visited, ast.parse(guard.removed, mode="eval").body), node)


def _function_node(tree: ast.AST, name: str) -> ast.AST | None:
    found: ast.AST | None = tree
    for part in name.split("."):
        children = ast.iter_child_nodes(found) if found is not None else ()
        found = next((c for c in children if getattr(c, "name", None) == part), None)
    return found


def _nested(code: CodeType, name: str) -> CodeType | None:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            if constant.co_qualname == name:
                return constant
            if (found := _nested(constant, name)) is not None:
                return found
    return None
