"""`strandline config`: shows, changes and compares the configuration of topics, groups, brokers and the cluster; lists keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from strandline.cli.common import (
    CONNECT_TIMEOUT_MS,
    DEFAULT_BOOTSTRAP,
    ERROR,
    Bootstrap,
    fail,
    new_app,
    note,
    run,
)
from strandline.cli.config_table import SOURCES, is_given
from strandline.cli.output import Form, Output, Table, View, show
from strandline.cli.watch import Watch, present
from strandline.protocol.errors import StrandlineError, UsageError
from strandline.reach import reach

if TYPE_CHECKING:
    from strandline.client import Admin, ConfigEntry

app = new_app("Show, change and compare the configuration of topics, groups, brokers and the cluster; list the keys.")

TIMEOUT_MS = 6000
BROKER_TIMEOUT_MS = 2000
"""Short, because a person waits, and a broker that is down never answers."""
KINDS = ("topic", "group", "broker", "cluster")
_WHAT = "topic NAME|group NAME|broker ID|cluster"
Words = Annotated[list[str], typer.Argument(metavar=f"{_WHAT} [KEY...]", help="What to show, and which keys of it.")]
All = Annotated[bool, typer.Option("--all", help="Show the keys with default values too.")]


class Resource(NamedTuple):
    """A topic, a group, a broker, or the cluster, which has an empty name."""

    kind: str
    name: str

    def __str__(self) -> str:
        return self.kind if self.kind == "cluster" else f"{self.kind} {self.name}"

    @property
    def resource_type(self) -> str:
        """The admin client's name of the kind: the cluster is the default of all brokers."""
        return "broker" if self.kind == "cluster" else self.kind


def resource_of(words: list[str]) -> tuple[Resource, list[str]]:
    """The resource that the first words name, and the other words. UsageError."""
    kind, rest = words[0], words[1:]
    if kind not in KINDS:
        from strandline.controller.metadata.config_keys import nearest

        guess = nearest(kind, KINDS)
        raise UsageError(
            f"{kind!r} is none of topic, group, broker and cluster" + (f"; did you mean {guess!r}?" if guess else "")
        )
    if kind == "cluster":
        return Resource(kind, ""), rest
    if not rest:
        raise UsageError(f"the {kind} is missing: strandline config ... {kind} {'ID' if kind == 'broker' else 'NAME'}")
    if kind == "broker" and not rest[0].isdecimal():
        raise UsageError(f"a broker is named by its id, a number, not {rest[0]!r}")
    return Resource(kind, rest[0]), rest[1:]


# -- show -------------------------------------------------------------------------------------------------------------


@app.command()
def get(
    words: Words,
    all_keys: All = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = Form.table,
    watch: Watch = None,
) -> None:
    """Show the configuration of a topic, a group, a broker or the cluster, and the source of each value. Without KEY, --all or
    -o json, only the values that are not defaults. If a broker does not answer, only the values that were set for it are shown,
    and the exit code is 1."""
    resource, wanted = resource_of(words)

    async def ask_for_view() -> View:
        found = await ask(bootstrap, resource)
        by_name = {c.name: c for c in found.configs}
        for name in wanted:
            if name not in by_name and found.is_complete:
                _refuse_unknown(resource, name, by_name)
        chosen = [by_name[name] for name in wanted if name in by_name] if wanted else found.configs
        return _view(resource, chosen, found, all_keys or bool(wanted), output)

    present(ask_for_view, output, watch)


app.command("describe", help="The same as `config get`.")(get)


def _refuse_unknown(resource: Resource, name: str, known: dict[str, ConfigEntry]) -> None:
    from strandline.controller.metadata.config_keys import unknown_key

    raise unknown_key(name, known, f"config key of a {resource.kind}" if resource.name else "config key of the cluster")


def _view(resource: Resource, configs: list[ConfigEntry], found: Found, all_keys: bool, output: Form) -> View:
    document = {
        "resource_type": resource.kind,
        "resource_name": resource.name,
        "complete": found.is_complete,
        "configs": [_json(c) for c in configs],
    }
    shown = configs if all_keys or output is Form.plain else [c for c in configs if is_given(c)]
    columns = ("key", "value", "source", "meaning")
    rows = [(c.name, c.value, SOURCES.get(c.source, c.source), c.documentation) for c in shown]
    parts: list[Table | str] = [Table(columns, rows, more=("meaning",))] if rows else []
    hidden = len(configs) - len(shown)
    if hidden:
        parts.append(f"{hidden} keys have default values; --all shows them")
    return View(document, parts, [found.problem] if found.problem else [], 0 if found.is_complete else ERROR)


def _json(config: ConfigEntry) -> dict[str, Any]:
    synonyms = [{"name": s.name, "value": s.value, "source": s.source} for s in config.synonyms]
    return {
        "name": config.name,
        "value": config.value,
        "source": config.source,
        "read_only": config.read_only,
        "type": config.type,
        "update": config.update,
        "synonyms": synonyms,
    }


class Found(NamedTuple):
    """The configuration of a resource, as far as it is known. `problem`: why it is not complete; empty if it is."""

    configs: list[ConfigEntry]
    problem: str = ""

    @property
    def is_complete(self) -> bool:
        return not self.problem


async def ask(bootstrap: str, resource: Resource) -> Found:
    from strandline.client import Admin

    async with Admin(**reach(bootstrap), connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
        return await ask_with(admin, resource)


async def ask_with(admin: Admin, resource: Resource) -> Found:
    """The configuration of a resource. Brokers list the keys of the cluster that were set; the others have their defaults.

    Only the broker itself knows the values in its file. If it does not answer, the result has the values for all brokers, which
    any broker knows, and a `problem`."""
    if resource.kind in ("topic", "group"):
        return Found(await admin.describe_configs(resource.kind, resource.name, timeout_ms=TIMEOUT_MS))
    if not resource.name:
        return Found(_with_defaults(await admin.describe_configs("broker", "", timeout_ms=TIMEOUT_MS)))
    cluster = await admin.describe_cluster(timeout_ms=TIMEOUT_MS)
    if int(resource.name) not in [b.broker_id for b in cluster.brokers]:
        known = ", ".join(str(b.broker_id) for b in cluster.brokers)
        raise UsageError(f"there is no broker {resource.name}; the cluster has {known}")
    try:
        return Found(await admin.describe_configs("broker", resource.name, timeout_ms=BROKER_TIMEOUT_MS))
    except StrandlineError:
        problem = f"broker {resource.name} did not answer: its file and its own values are not known, only those for all brokers"
        return Found(_with_defaults(await admin.describe_configs("broker", "", timeout_ms=TIMEOUT_MS)), problem)


def _with_defaults(configs: list[ConfigEntry]) -> list[ConfigEntry]:
    from strandline.client import ConfigEntry
    from strandline.controller.metadata.config_keys import Update
    from strandline.controller.metadata.node_keys import DYNAMIC_BROKER_CONFIGS

    known = {config.name: config for config in configs}
    for key in DYNAMIC_BROKER_CONFIGS.values():
        if key.update is not Update.BROKER:
            default = ConfigEntry(
                key.name, key.text(key.default), "default", type=key.type, documentation=key.meaning, update=key.update
            )
            known.setdefault(key.name, default)
    return [known[name] for name in sorted(known)]


# -- change -----------------------------------------------------------------------------------------------------------


@app.command("set")
def set_(
    words: Annotated[
        list[str],
        typer.Argument(metavar=f"{_WHAT} KEY=VALUE...", help="What to change. KEY+=ITEM appends to a list, KEY-=ITEM removes."),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the change, and make none.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Set keys of a topic, a group, a broker or the cluster while it runs. The other keys stay as they are."""
    resource, settings = resource_of(words)
    if not settings:
        raise UsageError(f"nothing to set: strandline config set {resource} KEY=VALUE")
    values: dict[str, str | None] = {}
    append: dict[str, str] = {}
    subtract: dict[str, str] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key.strip("+- "):
            raise UsageError(f"a setting is KEY=VALUE, KEY+=ITEM or KEY-=ITEM, not {setting!r}")
        target = append if key.endswith("+") else subtract if key.endswith("-") else values
        name = key.rstrip("+-").strip()
        if name in {**values, **append, **subtract}:
            raise UsageError(f"{name} is given twice")
        target[name] = value.strip()
    _change(bootstrap, resource, values, append, subtract, dry_run)
    note(f"{resource}: {', '.join(settings)}{' would be accepted' if dry_run else ''}")


@app.command()
def unset(
    words: Annotated[list[str], typer.Argument(metavar=f"{_WHAT} KEY...", help="What to change, and the keys.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the change, and make none.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Remove values that were set, so that the next source counts: broker, cluster, file, default."""
    resource, names = resource_of(words)
    if not names:
        raise UsageError(f"nothing to unset: strandline config unset {resource} KEY")
    _change(bootstrap, resource, dict.fromkeys(names), {}, {}, dry_run)
    note(f"{resource}: {', '.join(names)} {'can be unset' if dry_run else 'unset'}")


def _change(
    bootstrap: str,
    resource: Resource,
    values: dict[str, str | None],
    append: dict[str, str],
    subtract: dict[str, str],
    dry_run: bool,
) -> None:
    from strandline.client import Admin

    async def work() -> list[str]:
        async with Admin(**reach(bootstrap), connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
            return await admin.alter_configs(
                resource.resource_type, resource.name, values, append=append, subtract=subtract, validate_only=dry_run
            )

    for warning in run(work()):
        note(f"warning: {warning}")


# -- compare ----------------------------------------------------------------------------------------------------------


@app.command()
def diff(
    words: Annotated[
        list[str], typer.Argument(metavar=f"{_WHAT} [OTHER]", help="What to compare: with its defaults, or with another one.")
    ],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = Form.table,
    watch: Watch = None,
) -> None:
    """Show the keys whose value differs from the default, or between two topics, groups or brokers. If a broker does not answer,
    the exit code is 1."""
    resource, others = resource_of(words)
    if len(others) > 1 or (others and resource.kind == "cluster"):
        raise UsageError("config diff compares two topics, groups or brokers, or one of them or the cluster with the defaults")
    other = resource_of([resource.kind, others[0]])[0] if others else None

    async def ask_for_view() -> View:
        return await _difference(bootstrap, resource, other)

    present(ask_for_view, output, watch)


async def _difference(bootstrap: str, one: Resource, other: Resource | None) -> View:
    from strandline.client import Admin

    async with Admin(**reach(bootstrap), connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
        found = [await ask_with(admin, each) for each in (one, other) if each is not None]
    if other is None:
        columns: tuple[str, ...] = ("key", "value", "default", "source")
        rows = _changed(found[0].configs)
        equal = f"every key of {one} has its default"
    else:
        columns = ("key", str(one), str(other))
        rows = _different(found[0].configs, found[1].configs)
        equal = f"{one} and {other} are equal"
    problems = [each.problem for each in found if each.problem]
    document = {"differences": [dict(zip(columns, row, strict=True)) for row in rows], "complete": not problems}
    parts: list[Table | str] = [Table(columns, rows)] if rows else [] if problems else [equal]
    return View(document, parts, problems, ERROR if problems else 0)


def _changed(configs: list[ConfigEntry]) -> list[tuple[str | None, ...]]:
    return [(c.name, c.value, _default(c), SOURCES.get(c.source, c.source)) for c in configs if c.value != _default(c)]


def _different(one: list[ConfigEntry], other: list[ConfigEntry]) -> list[tuple[str | None, ...]]:
    left, right = {c.name: c.value for c in one}, {c.name: c.value for c in other}
    return [(name, left.get(name), right.get(name)) for name in {**left, **right} if left.get(name) != right.get(name)]


def _default(config: ConfigEntry) -> str | None:
    if config.source == "default":
        return config.value
    return next((s.value for s in config.synonyms if s.source == "default"), None)


# -- the keys ---------------------------------------------------------------------------------------------------------


@app.command()
def keys(
    filter: Annotated[str, typer.Argument(metavar="TEXT", help="Only keys that contain this text.")] = "",
    output: Output = Form.table,
) -> None:
    """List every key of brokers, controllers, topics and groups with its default, unit and meaning, and where it can be changed
    while the nodes run ("change")."""
    rows = [row for row in _rows() if filter in row["name"]]
    if not rows:
        fail(f"no configuration key contains {filter!r}; `strandline config keys` lists all keys")
    columns = ("key", "used by", "change", "type", "default", "unit", "meaning")
    names = ("name", "used_by", "update", "type", "default", "unit", "meaning")
    cells = [[row[name].replace("\n", " ") if name == "meaning" else row[name] for name in names] for row in rows]
    show(View({"keys": rows}, [Table(columns, cells, spare=("type", "used by", "unit", "change"))]), output)


def _rows() -> list[dict[str, Any]]:
    from strandline.controller.metadata.config_keys import REQUIRED, TOPIC_CONFIGS, ConfigKey, Update
    from strandline.controller.metadata.group_configs import GROUP_CONFIGS
    from strandline.node import keys_of

    def row(key: ConfigKey, update: str) -> dict[str, Any]:
        default = "(required)" if key.default is REQUIRED else key.text(key.default)
        return {
            "name": key.name,
            "used_by": [],
            "update": str(update),
            "type": key.type,
            "default": default,
            "unit": key.unit,
            "meaning": key.meaning,
        }

    found: dict[tuple[str, str], dict[str, Any]] = {}
    for role in ("broker", "controller"):
        for key in keys_of(role):
            found.setdefault(("node", key.name), row(key, key.update))["used_by"].append(role)
    for update, own in ((Update.TOPIC, TOPIC_CONFIGS), (Update.GROUP, GROUP_CONFIGS)):
        for key in own.values():
            found.setdefault((update, key.name), row(key, update))["used_by"].append(str(update))
    return [found[name] for name in sorted(found)]
