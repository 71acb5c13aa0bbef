"""The simulator and the kit look at the product through the listed observation points, and use none of its private names."""

from __future__ import annotations

import ast
import importlib
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from strandline.testing.simulation.observation import probes, watching
from strandline.testing.simulation.observation.marks import MARKS
from strandline.testing.simulation.observation.points import POINTS
from strandline.testing.simulation.observation.watching import Watch

ROOT = Path(__file__).parents[3]
TESTING = ROOT / "testing"
PRODUCT = ("broker", "client", "controller", "protocol", "storage", "strandline")
OBSERVERS = ("cluster", "invariants", "kernel", "nemesis", "observation")
"""The rooms of the simulator that look at the product."""
CHANGES_THE_PRODUCT = {
    "simulation/campaign/mutations.py",
    "simulation/campaign/group_config_mutations.py",
    "simulation/campaign/security_mutations.py",
    "simulation/guards/catalogue.py",
}

EXCEPTIONS = {
    "kit/recording.py: _send_any": "a `Producer` that records each record must meet the one place that all of its sends pass",
    "kit/recording.py: _decode": "a `Consumer` that records raw values must meet the place where it deserializes them",
    "kit/recording.py: _begin": "a `Consumer` that records its jumps must meet the place where it begins a partition",
    "simulation/cluster/transactions/writer.py: _sender": "no program needs its producer's epoch, and a history compares it",
    "kit/recording.py: _move": "a `Consumer` that records its jumps must meet the place where it moves in a partition",
}
"""Private names of the product that modules below `testing/` use all the same, with the reason."""
NOT_OF_THE_PRODUCT = {
    "plugin.py: _loop": "the end of a fixture's name",
    "kit/wires.py: _write": "of `End`, which is the simulator's own",
    "kit/simulated/nodes.py: _remove": "of the simulator's own faults",
    "simulation/story/story.py: _replace": "of Python's named tuples",
    "simulation/campaign/workers.py: _exit": "of the module `os`",
    "simulation/guards/hunt.py: _exit": "of the module `os`",
}
"""Private names that happen to be defined in the product as well."""


# -- what the simulator uses ------------------------------------------------------------------------------------------


def test_every_wrapped_function_is_an_observation_point(monkeypatch: pytest.MonkeyPatch) -> None:
    """No observation point is private, so no probe and no mark depends on a private name."""
    assert wrapped(monkeypatch) - set(points()) == set()


def test_every_observation_point_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is wrapped, or a module of the simulator reads an attribute of this name."""
    read = {name for room in OBSERVERS for path in (TESTING / "simulation" / room).glob("*.py") for name in names_in(path)}
    unused = {(owner, name) for owner, name in set(points()) - wrapped(monkeypatch) if name not in read}
    assert unused == set()


@pytest.mark.parametrize("owner", POINTS)
def test_product_has_its_observation_points(owner: str) -> None:
    module_name, _, class_name = owner.partition(":")
    module: Any = importlib.import_module(f"strandline.{module_name}")
    holder = getattr(module, class_name) if class_name else module
    for name in names_of(owner):
        assert re.match(r"__init__|[a-z]", name), f"{owner}.{name} is private"
        assert is_function(holder, name) or is_assigned(module, class_name, name), f"{owner} has no {name}"


def test_testing_uses_no_private_name_of_the_product() -> None:
    """The names in `EXCEPTIONS` are permitted, and all in use."""
    private = defined(path for room in PRODUCT for path in (ROOT / room).rglob("*.py") if "testing" not in path.parts)
    assert len(private) > 500
    used = {f"{path.relative_to(TESTING)}: {name}" for path, name in used_of_others() if name in private}
    assert used - set(NOT_OF_THE_PRODUCT) == set(EXCEPTIONS)


# -- helpers ----------------------------------------------------------------------------------------------------------


def names_of(owner: str) -> list[str]:
    return [name for names in POINTS[owner] for name in names.split(", ")]


def points() -> Iterator[tuple[str, str]]:
    return ((owner, name) for owner in POINTS for name in names_of(owner))


def wrapped(monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, str]]:
    """(owner, name) of each function that the probes and the marks wrap."""
    found: set[tuple[str, str]] = set()

    def note(by: str, owner: Any, name: str, make: Callable[..., Any]) -> Callable[[], None]:
        path = owner.__name__ if isinstance(owner, ModuleType) else f"{owner.__module__}:{owner.__qualname__}"
        found.add((path.removeprefix("strandline."), name))
        return lambda: None

    with monkeypatch.context() as patched:
        patched.setattr(probes, "wrap", note)
        patched.setattr(watching, "wrap", note)
        with probes.idle(), Watch({name: mark.sights for name, mark in MARKS.items()}, print).installed():
            pass
    return found


def is_function(holder: Any, name: str) -> bool:
    found = vars(holder).get(name)
    return callable(found) or isinstance(found, property | classmethod | staticmethod)


def is_assigned(module: ModuleType, class_name: str, name: str) -> bool:
    """Whether a method of the class assigns `self.name`, or the class declares it."""
    tree = ast.parse(Path(str(module.__file__)).read_text())
    return any(name in defined_in(node) for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == class_name)


def defined(paths: Iterable[Path]) -> set[str]:
    """The private names that the modules define."""
    names = {name for path in paths for name in defined_in(ast.parse(path.read_text()))}
    return {name for name in names if re.match(r"_[a-z]", name)}


def defined_in(tree: ast.AST) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def used_of_others() -> Iterator[tuple[Path, str]]:
    """The private names in `testing/` that belong to another object and are defined in no module of the same folder, and those
    of a base class."""
    rooms: dict[Path, list[Path]] = defaultdict(list)
    for path in sorted(TESTING.rglob("*.py")):
        rooms[path.parent].append(path)
    for paths in rooms.values():
        own = defined(paths)
        for path in paths:
            if str(path.relative_to(TESTING)) not in CHANGES_THE_PRODUCT:
                yield from ((path, name) for name in names_in(path) if name[0] == "_" and name not in own)
                yield from ((path, name) for name in extended_in(path) if name[0] == "_")


def extended_in(path: Path) -> Iterator[str]:
    """The methods of a base class that a subclass extends: `super().name`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Call) and ast.unparse(node.value.func) == "super":
            yield node.attr


def names_in(path: Path) -> Iterator[str]:
    """Attributes of objects other than `self`, and strings that name one: "module:Class._name", or `getattr(thing, "_name")`."""
    slots: set[ast.AST] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Assign) and any(isinstance(to, ast.Name) and to.id == "__slots__" for to in node.targets):
            slots.update(ast.walk(node.value))
        elif isinstance(node, ast.Attribute) and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in slots:
            found = re.fullmatch(r"(?:[\w.:]*[.:])?(_?[a-z]\w*)", node.value)
            if found is not None:
                yield found[1]
