"""Finds the places where code depends on the order of a set whose order depends on the process.

It infers types just enough to recognise a set: from annotations (of fields, parameters and results, by
name over the whole code base, and by class for `self`), literals, comprehensions, set algebra (also of the views of
dicts), `asyncio.wait`, and what these were assigned to. It ignores control flow and inheritance: a name that is a set
somewhere in its function, or a field that is a set in some class, counts as one everywhere. So it rather finds too much.

Uses that do not depend on the order are permitted: membership, size, algebra, comparison, `sorted`, `any`, `all`, `min`, `max`,
`sum`, and building another set. `sorted`, `min` and `max` with a `key` are not, because the set's order decides between
members with equal keys.

Integers hash to themselves, and so do tuples of them: a set of integers that was filled by the same steps has the same order
in every process. Code may iterate over such sets. (Not if they contain None, whose hash was an address until Python 3.12.)
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Shape = Any
"""The inferred type of an expression. None: not known. Else a tuple: ("plain",), ("set", member), ("view", key),
("seq", member), ("map", key, value), or ("tuple", members...)."""

PLAIN: Shape = ("plain",)
"""A value that has the same hash in every process."""

SETS = {"set", "frozenset", "Set", "AbstractSet", "MutableSet", "WeakSet", "FrozenSet"}
SEQUENCES = {"list", "Sequence", "MutableSequence", "Iterable", "Iterator", "Collection", "deque", "AsyncIterator", "Generator"}
MAPS = {"dict", "Mapping", "MutableMapping", "OrderedDict", "defaultdict", "Counter", "PersistentMap", "WeakKeyDictionary"}
WRAPPERS = {"Optional", "Final", "ClassVar", "Awaitable", "Annotated", "Task", "Future", "Required", "NotRequired"}

ORDERLESS = {"len", "any", "all", "sum", "sorted", "min", "max", "set", "frozenset", "bool", "isinstance", "type"}
TIES = {"sorted", "min", "max"}
SET_METHODS = {
    "union", "intersection", "difference", "symmetric_difference", "update", "intersection_update", "difference_update",
    "symmetric_difference_update", "issubset", "issuperset", "isdisjoint", "copy",
}  # fmt: skip
KEEPERS = {"get", "setdefault", "pop", "append", "appendleft"}
"""Methods that take a set as an argument and do not iterate over it."""
PROPERTIES = {"property", "cached_property"}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


@dataclass(slots=True)
class Names:
    """The inferred shapes of names in the code base, by the last part of the name."""

    aliases: dict[str, ast.expr] = field(default_factory=dict)
    fields: dict[str, Shape] = field(default_factory=dict)
    own: dict[tuple[str, str], Shape] = field(default_factory=dict)
    """(Class, name of a field) -> the shape that the class declares, for `self.name`."""
    classes: dict[int, str] = field(default_factory=dict)
    """`id` of a method's node -> the name of its class."""
    results: dict[str, Shape] = field(default_factory=dict)
    takers: set[str] = field(default_factory=set)
    """Functions and classes with a parameter or field that is declared to be a set: its uses are checked there."""


def find(sources: Mapping[str, str]) -> list[tuple[str, int, str]]:
    """Return (path, line, expression) of every place that depends on the order of a shuffled set."""
    trees = {path: ast.parse(source) for path, source in sources.items()}
    names = _names(trees.values())
    return sorted((path, line, text) for path, tree in trees.items() for line, text in _Scope(names, tree, {}).complaints())


# -- what is called a set ---------------------------------------------------------------------------------------------


def _names(trees: Iterable[ast.Module]) -> Names:
    names = Names()
    nodes = [node for tree in trees for node in ast.walk(tree)]
    for node in nodes:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=(ast.Subscript() | ast.Name()) as value):
                names.aliases.setdefault(name, value)
    for node in nodes:
        match node:
            case ast.ClassDef():
                _learn_class(names, node)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                _learn_function(names, node)
    for node in nodes:
        if isinstance(node, ast.ClassDef):
            _learn_fields(names, node)
    return names


def _learn(known: dict[str, Shape], name: str, shape: Shape) -> None:
    """Note a shape of a name. A set wins over other shapes, and a shuffled set over a plain one."""
    old = known.get(name)
    if shape is not None and (old is None or _alarm(shape) > _alarm(old)):
        known[name] = shape


def _alarm(shape: Shape) -> int:
    if shape is None or shape == PLAIN:
        return 0
    if shape[0] == "set":
        return 2 if is_shuffled(shape) else 1
    return max(map(_alarm, shape[1:]), default=0)


def _learn_field(names: Names, class_name: str, name: str, shape: Shape) -> None:
    _learn(names.fields, name, shape)
    known = names.own.get((class_name, name))
    if known is None or _alarm(shape) > _alarm(known):
        names.own[class_name, name] = shape


def _learn_fields(names: Names, node: ast.ClassDef) -> None:
    """Learn the fields that methods assign, the ones without an annotation last."""
    methods = [item for item in node.body if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef))]
    names.classes.update({id(method): node.name for method in methods})
    for method in methods:
        is_property = any(isinstance(d, ast.Name) and d.id in PROPERTIES for d in method.decorator_list)
        if not is_property:
            names.own.setdefault((node.name, method.name))
    inner = [part for method in methods for part in ast.walk(method)]
    for part in inner:
        match part:
            case ast.AnnAssign(target=ast.Attribute(value=ast.Name(id="self"), attr=name), annotation=annotation):
                _learn_field(names, node.name, name, said(annotation, names))
    for part in inner:
        match part:
            case ast.Assign(targets=[ast.Attribute(value=ast.Name(id="self"), attr=name)], value=value):
                _learn_field(names, node.name, name, _Scope(names, ast.Module([], []), {}).shape(value))


def _learn_class(names: Names, node: ast.ClassDef) -> None:
    for item in node.body:
        match item:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation):
                shape = said(annotation, names)
                _learn_field(names, node.name, name, shape)
                if _is_set(shape):
                    names.takers.add(node.name)
            case ast.FunctionDef(name="__init__", args=arguments):
                if any(_is_set(said(a.annotation, names)) for a in _parameters(arguments)):
                    names.takers.add(node.name)


def _learn_function(names: Names, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
    result = said(node.returns, names)
    is_property = any(isinstance(d, ast.Name) and d.id in PROPERTIES for d in node.decorator_list)
    _learn(names.fields if is_property else names.results, node.name, result)
    if any(_is_set(said(a.annotation, names)) for a in _parameters(node.args)):
        names.takers.add(node.name)


def _parameters(arguments: ast.arguments) -> list[ast.arg]:
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]


def said(annotation: ast.expr | None, names: Names, depth: int = 0) -> Shape:
    """Return the shape that an annotation describes."""
    if annotation is None or depth > 8:
        return None
    match annotation:
        case ast.Constant(value=str(text)):
            return said(ast.parse(text, mode="eval").body, names, depth + 1)
        case ast.BinOp(left=left, right=right, op=ast.BitOr()):
            return max(
                (said(side, names, depth + 1) for side in (left, right)), key=lambda s: (_alarm(s), s not in (None, PLAIN))
            )
        case ast.Subscript(value=value, slice=inner) if _last(value) != "Literal":
            return _generic(_last(value), inner, names, depth)
        case ast.Name() | ast.Attribute():
            return _bare(_last(annotation), names, depth)
    return None


def _bare(name: str, names: Names, depth: int) -> Shape:
    if name in ("int", "bool"):
        return PLAIN
    if name in SETS:
        return ("set", None)
    alias = names.aliases.get(name)
    return said(alias, names, depth + 1) if alias is not None else None


def _generic(name: str, inner: ast.expr, names: Names, depth: int) -> Shape:
    parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
    shapes = [said(part, names, depth + 1) for part in parts]
    if name in SETS:
        return ("set", shapes[0])
    if name in SEQUENCES or (name == "tuple" and isinstance(parts[-1], ast.Constant)):
        return ("seq", shapes[0])
    if name == "tuple":
        return PLAIN if all(shape == PLAIN for shape in shapes) else ("tuple", *shapes)
    if name in MAPS and len(shapes) == 2:
        return ("map", *shapes)
    if name == "KeysView":
        return ("view", shapes[0])
    return shapes[0] if name in WRAPPERS else shapes[-1] if name == "Coroutine" else None


def _last(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _is_set(shape: Shape) -> bool:
    return shape is not None and shape[0] == "set"


def is_shuffled(shape: Shape) -> bool:
    """Return whether the set has another order in another process."""
    return _is_set(shape) and shape[1] != PLAIN


def _member(shape: Shape) -> Shape:
    """Return the shape of the members that an iteration gives."""
    if shape is None or shape == PLAIN:
        return None
    if shape[0] == "tuple":
        return max(shape[1:], key=_alarm, default=None)
    return shape[1]


# -- one function -----------------------------------------------------------------------------------------------------


class _Scope:
    """A module or function, with its variables and their uses."""

    def __init__(self, names: Names, tree: ast.AST, outer: Mapping[str, Shape], class_name: str = "") -> None:
        self.names = names
        self.tree = tree
        self.class_name = names.classes.get(id(tree), class_name)
        self.nodes = list(_own(tree))
        self.variables: dict[str, Shape] = dict(outer)
        if isinstance(tree, FUNCTIONS):
            for argument in _parameters(tree.args):
                self.variables[argument.arg] = said(argument.annotation, names)
        for _ in range(3):  # A variable may come from a variable that comes from a variable.
            for node in self.nodes:
                self._bind(node)

    def _bind(self, node: ast.AST) -> None:
        match node:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation):
                _learn(self.variables, name, said(annotation, self.names))
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._unpack(target, self.shape(value))
            case ast.NamedExpr(target=target, value=value):
                self._unpack(target, self.shape(value))
            case ast.For(target=target, iter=iterated) | ast.AsyncFor(target=target, iter=iterated):
                self._unpack(target, _member(self.shape(iterated)))
            case ast.comprehension(target=target, iter=iterated):
                self._unpack(target, _member(self.shape(iterated)))

    def _unpack(self, target: ast.expr, shape: Shape) -> None:
        if isinstance(target, ast.Name):
            _learn(self.variables, target.id, shape)
        elif isinstance(target, (ast.Tuple, ast.List)):
            members = shape[1:] if shape is not None and shape[0] == "tuple" else [_member(shape)] * len(target.elts)
            for part, member in zip(target.elts, members, strict=False):
                self._unpack(part, member)

    # -- shapes of expressions ----------------------------------------------------------------------------------------

    def shape(self, node: ast.expr) -> Shape:
        match node:
            case ast.Name(id=name):
                return self.variables.get(name)
            case ast.Attribute(value=ast.Name(id="self"), attr=name) if (self.class_name, name) in self.names.own:
                return self.names.own[self.class_name, name]
            case ast.Attribute(attr=name):
                return self.names.fields.get(name)
            case ast.Constant(value=int()):
                return PLAIN
            case ast.Await(value=value) | ast.NamedExpr(value=value):
                return self.shape(value)
            case ast.Set(elts=members):
                return ("set", self._common(members))
            case ast.List(elts=members):
                return ("seq", self._common(members))
            case ast.Tuple(elts=members):
                shapes = [self.shape(member) for member in members]
                return PLAIN if shapes and all(shape == PLAIN for shape in shapes) else ("tuple", *shapes)
            case ast.SetComp(elt=member):
                return ("set", self.shape(member))
            case ast.ListComp(elt=member) | ast.GeneratorExp(elt=member):
                return ("seq", self.shape(member))
            case ast.DictComp(key=key, value=value):
                return ("map", self.shape(key), self.shape(value))
            case ast.BoolOp(values=values):
                return self._worst(values)
            case ast.IfExp(body=body, orelse=orelse):
                return self._worst([body, orelse])
            case ast.BinOp(left=left, op=op, right=right):
                return self._algebra(self.shape(left), op, self.shape(right))
            case ast.Subscript(value=value):
                shape = self.shape(value)
                return shape[2] if shape is not None and shape[0] == "map" else _member(shape)
            case ast.Call():
                return self._result(node)
        return None

    def _common(self, members: list[ast.expr]) -> Shape:
        shapes = [self.shape(member) for member in members]
        return shapes[0] if shapes and all(shape == shapes[0] for shape in shapes) else None

    def _worst(self, nodes: list[ast.expr]) -> Shape:
        return max((self.shape(node) for node in nodes), key=_alarm)

    @staticmethod
    def _algebra(left: Shape, op: ast.operator, right: Shape) -> Shape:
        kinds = [shape[0] for shape in (left, right) if shape is not None]
        if not isinstance(op, (ast.BitOr, ast.BitAnd, ast.Sub, ast.BitXor)) or not {"set", "view"} & set(kinds):
            return left if isinstance(op, ast.Add) and left == right else None
        members = [_member(shape) for shape in (left, right)]
        return ("set", members[0] if members[0] == members[1] or isinstance(op, ast.Sub) else None)

    def _result(self, call: ast.Call) -> Shape:
        argument = self.shape(call.args[0]) if call.args else None
        match call.func:
            case ast.Name(id="set" | "frozenset"):
                return ("set", _member(argument))
            case ast.Name(id="sorted" | "list" | "tuple" | "iter" | "reversed" | "deque"):
                return ("seq", _member(argument))
            case ast.Name(id="field"):
                return None
            case ast.Attribute(value=ast.Name(id="dict"), attr="fromkeys"):
                return ("map", _member(argument), None)
            case ast.Attribute(value=ast.Name(id="asyncio"), attr="wait"):
                return ("tuple", ("set", None), ("set", None))
            case ast.Attribute(value=ast.Name(id="asyncio"), attr="all_tasks"):
                return ("set", None)
            case ast.Attribute(value=value, attr=method):
                return self._method(self.shape(value), method)
            case ast.Name(id=name):
                return self.names.results.get(name)
        return None

    def _method(self, owner: Shape, method: str) -> Shape:
        if _is_set(owner) and method in SET_METHODS | {"pop"}:
            return owner[1] if method == "pop" else owner
        if owner is not None and owner[0] == "map":
            key, value = owner[1:]
            found = {"keys": ("view", key), "values": ("seq", value), "items": ("seq", ("tuple", key, value)), "copy": owner}
            return found.get(method, value if method in ("get", "pop", "setdefault") else None)
        if method == "keys":
            return ("view", None)
        return self.names.results.get(method)

    # -- what is done with them ---------------------------------------------------------------------------------------

    def complaints(self) -> Iterator[tuple[int, str]]:
        harmless = {id(generator) for node in self.nodes for generator in self._whose_order_is_lost(node)}
        for node in self.nodes:
            for culprit in self._ordered_uses(node):
                if id(culprit) not in harmless and is_shuffled(self.shape(culprit)):
                    yield culprit.lineno, ast.unparse(culprit)
        for node in self.nodes:
            if isinstance(node, FUNCTIONS):
                yield from _Scope(self.names, node, self.variables, self.class_name).complaints()

    def _whose_order_is_lost(self, node: ast.AST) -> Iterator[ast.expr]:
        """Return the iterables of comprehensions whose result loses the order: a set, a number or a sorted list."""
        of_these: list[ast.expr] = [node] if isinstance(node, ast.SetComp) else []
        if isinstance(node, ast.Call) and self._forgets_order(node):
            of_these += [a for a in node.args if isinstance(a, (ast.GeneratorExp, ast.ListComp))]
        for comprehension in of_these:
            yield from (g.iter for g in comprehension.generators)  # type: ignore[attr-defined]

    def _forgets_order(self, call: ast.Call) -> bool:
        match call.func:
            case ast.Name(id=name) if name in ORDERLESS:
                return not (name in TIES and any(keyword.arg == "key" for keyword in call.keywords))
            case ast.Attribute(value=ast.Name(id="asyncio"), attr="wait"):
                return True  # It builds a set from its argument in any case.
            case ast.Attribute(value=value, attr=method):
                on_a_set = method in SET_METHODS and _is_set(self.shape(value))
                return on_a_set or method in KEEPERS or method in self.names.takers
            case ast.Name(id=name):
                return name in self.names.takers
        return False

    def _ordered_uses(self, node: ast.AST) -> Iterator[ast.expr]:
        """Return the expressions whose order this node uses."""
        match node:
            case ast.For(iter=iterated) | ast.AsyncFor(iter=iterated) | ast.comprehension(iter=iterated):
                yield iterated
            case ast.Call(func=ast.Attribute(value=owner, attr="pop"), args=[]):
                yield owner
            case ast.Call() if not self._forgets_order(node):
                keywords = [k.value for k in node.keywords if not _is_set(self.names.fields.get(k.arg or ""))]
                yield from (a for a in [*node.args, *keywords] if not isinstance(a, ast.Starred))
            case ast.Starred(value=value) | ast.YieldFrom(value=value) | ast.FormattedValue(value=value):
                yield value
            case ast.Assign(targets=[ast.Tuple() | ast.List(), *_], value=value):
                yield value
            case ast.AugAssign(op=ast.Add(), value=value):
                yield value
            case ast.AnnAssign(annotation=annotation, value=ast.expr() as value) if not _is_set(said(annotation, self.names)):
                yield value
            case ast.Return(value=ast.expr() as value) if self._promises_no_set():
                yield value

    def _promises_no_set(self) -> bool:
        returns = getattr(self.tree, "returns", None)
        return returns is not None and not _is_set(said(returns, self.names))


def _own(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function without those of nested functions; nested classes are included."""
    body = [tree.body] if isinstance(tree, ast.Lambda) else tree.body  # type: ignore[attr-defined]
    stack: list[ast.AST] = list(body)
    while stack:
        node = stack.pop(0)
        yield node
        if isinstance(node, FUNCTIONS):
            stack = [*getattr(node, "decorator_list", []), *node.args.defaults, *filter(None, node.args.kw_defaults), *stack]
        else:
            stack = [*ast.iter_child_nodes(node), *stack]
