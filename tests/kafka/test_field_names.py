"""The names of fields in the translations are Kafka's: a misspelt one would be read as missing, or not be written at all."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest
import strict_fields
from kio.schema.index import api_key_map
from strict_fields import Names, names_in_requests, names_in_responses, unknown_names

import strandline.broker.kafka.translations as translations
from strandline.broker.kafka.apis import KAFKA_APIS

MODULES = sorted(Path(translations.__file__).parent.glob("*.py"))
assert len(MODULES) > 3


def all_names(names: Names) -> set[str]:
    return set(names).union(*map(all_names, names.values()))


@cache
def request_names() -> set[str]:
    return set().union(*(all_names(names_in_requests(key)) for key in api_key_map))


@cache
def response_names() -> set[str]:
    return set().union(*(all_names(names_in_responses(key)) for key in api_key_map))


def fields_read_by_name(tree: ast.AST) -> list[str]:
    """The texts in `fields.get("name", default)`."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    named = [call.args[0] for call in calls if call.func.attr == "get" and call.args]
    return [name.value for name in named if isinstance(name, ast.Constant) and isinstance(name.value, str)]


def keys_of_dicts(tree: ast.AST) -> list[str]:
    """The keys of dicts in functions. Dicts of the module are tables."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    dicts = [node for function in functions for node in ast.walk(function) if isinstance(node, ast.Dict)]
    return [key.value for each in dicts for key in each.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]


@pytest.mark.parametrize("path", MODULES, ids=[path.stem for path in MODULES])
def test_fields_that_a_translation_names_exist_in_kafka(path):
    """A field that is read with a default is in some request, and a field that is written is in some response. Fields that are
    read without a default are attributes: every test would fail if one did not exist."""
    tree = ast.parse(path.read_text())
    assert [name for name in fields_read_by_name(tree) if name not in request_names()] == []
    assert [name for name in keys_of_dicts(tree) if name not in response_names()] == []


def test_misspelt_field_is_found():
    """The check of responses that `conftest.py` installs for all tests of this folder."""
    names = names_in_responses(3)
    good = {"brokers": [{"node_id": 1, "rack": None}], "topics": [], "throttle_time_ms": 0}
    assert unknown_names(names, good, "Metadata") == []
    assert unknown_names(names, {**good, "topic": []}, "Metadata") == ["Metadata.topic"]
    assert unknown_names(names, {**good, "brokers": [{"id": 1}]}, "Metadata") == ["Metadata.brokers.id"]


def test_every_response_is_looked_at():
    from strandline.broker.kafka.schemas import Schemas

    Schemas().response(12, 4).write(bytearray(), {"error_code": 0, "throttle_time_ms": 0, "throttle_ms": 0})
    assert strict_fields.misspelt == ["HeartbeatResponse.throttle_ms"]
    strict_fields.misspelt.clear()


def test_names_of_apis_are_kafkas():
    for key, api in KAFKA_APIS.items():
        assert api.name.lower() == api_key_map[key].replace("_", ""), key
