"""Which cluster a command talks to: options, the environment, the current context, a cluster of the folder, the default."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_world import Outcome, one_sentence, run
from test_cli_examples import LEAVES

from strandline.cli.contexts import Choice, Contexts, choose, load, local_cluster, path_of, save
from strandline.protocol.errors import UsageError

PROD = Contexts({"prod": {"bootstrap": "p:1"}, "dev": {"bootstrap": "d:1"}}, "prod")
BOOTSTRAP, CONTEXT = {"STRANDLINE_BOOTSTRAP": "e:1"}, {"STRANDLINE_CONTEXT": "dev"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = path_of({"XDG_CONFIG_HOME": str(tmp_path / "config")})
    save(path, PROD)
    return path


def local(folder: Path, name: str = "cluster.json", *, runs: bool = True) -> None:
    """Write the state of a local cluster, and the socket of its `up` if it runs."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    control = path.parent / "up.sock"
    if runs:
        control.touch()
    path.write_text(json.dumps({"bootstrap": "l:1", "control": str(control)}))


@pytest.mark.parametrize(
    ("option", "context", "environment", "expected"),
    [
        ("o:1", None, BOOTSTRAP | CONTEXT, "o:1"),
        (None, "dev", BOOTSTRAP, "d:1"),
        (None, None, BOOTSTRAP | CONTEXT, "e:1"),
        (None, None, CONTEXT, "d:1"),
        (None, None, {}, "p:1"),
    ],
    ids=["option", "--context", "STRANDLINE_BOOTSTRAP", "STRANDLINE_CONTEXT", "current"],
)
def test_nearer_choice_counts(
    tmp_path: Path, file: Path, option: str | None, context: str | None, environment: dict[str, str], expected: str
) -> None:
    local(tmp_path)
    assert choose(option, context, environment, tmp_path, file).bootstrap == expected


@pytest.mark.parametrize("name", ["cluster.json", "cluster/cluster.json"])
def test_cluster_of_the_folder_counts_before_the_default(tmp_path: Path, name: str) -> None:
    nothing = tmp_path / "no.toml"
    assert choose(None, None, {}, tmp_path, nothing) == Choice("127.0.0.1:9092", "the default")
    local(tmp_path, name)
    assert choose(None, None, {}, tmp_path, nothing) == Choice("l:1", f"the cluster of ./{name}")


def test_stopped_cluster_of_the_folder_does_not_count(tmp_path: Path) -> None:
    """Its ports may be those of another cluster by now."""
    local(tmp_path, runs=False)
    assert local_cluster(tmp_path) is None


def test_two_options_for_one_cluster_are_wrong_usage(tmp_path: Path, file: Path) -> None:
    with pytest.raises(UsageError, match="exclude each other"):
        choose("o:1", "dev", {}, tmp_path, file)
    with pytest.raises(UsageError, match="there is no context 'test'; there are: prod, dev"):
        choose(None, "test", {}, tmp_path, file)


def test_unknown_keys_of_a_context_are_kept(tmp_path: Path) -> None:
    """A later version may know more about a cluster than its address."""
    file = tmp_path / "config.toml"
    content = Contexts({"prod": {"bootstrap": "p:1", "client_config": 'päth \\ "x".toml', "ports": [1, 2], "tls": True}}, None)
    save(file, content)
    assert load(file) == content


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("current = ", "is not TOML"),
        ('current = "x"', "names no context"),
        ("[contexts.prod]\n", "prod has no bootstrap"),
        ("contexts = 3", "names no context"),
    ],
)
def test_malformed_file_is_one_sentence(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(text)
    with pytest.raises(UsageError, match=says) as error:
        load(file)
    assert str(file) in str(error.value)


def test_config_folder_is_that_of_xdg(tmp_path: Path) -> None:
    assert path_of({"XDG_CONFIG_HOME": "/x"}) == Path("/x/strandline/config.toml")
    assert path_of({"HOME": "/home/a", "XDG_CONFIG_HOME": "relative"}) == Path("/home/a/.config/strandline/config.toml")


def test_contexts_are_added_used_shown_and_removed(tmp_path: Path) -> None:
    def context(*words: str) -> Outcome:
        return run("context", *words, env={"XDG_CONFIG_HOME": str(tmp_path)})

    assert "there are no contexts" in context("list").err
    assert "the current context" in context("add", "prod", "p:1,q:2").err
    assert context("add", "dev", "d:1").code == 0
    assert context("list", "-o", "plain").out == "prod\tp:1,q:2\t*\ndev\td:1\t\n"
    assert context("show", "--json").json()["bootstrap"] == "p:1,q:2"
    assert context("use", "dev").code == 0
    assert "d:1 (context dev, the current one)" in context("show").out
    assert context("remove", "dev").code == 0
    assert "the default" in context("show").out
    assert "there is no context 'dev'; there are: prod" in one_sentence(context("use", "dev"))
    assert "host:port" in one_sentence(context("add", "bad", "nonsense"))
    assert "letters, digits" in one_sentence(context("add", "a b", "h:1"))


def test_error_names_where_the_address_comes_from(tmp_path: Path) -> None:
    environment = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert run("context", "add", "prod", "127.0.0.1:1", env=environment).code == 0
    said = one_sentence(run("topic", "list", env=environment))
    assert "the address is that of context prod, the current one; `strandline doctor` looks for the cause" in said
    assert "the address is that of" not in one_sentence(run("topic", "list", "-b", "127.0.0.1:1", env=environment))


def test_context_may_stand_before_the_command(tmp_path: Path) -> None:
    environment = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert run("context", "add", "prod", "127.0.0.1:1", env=environment).code == 0
    assert "that of context prod;" in one_sentence(run("--context", "prod", "topic", "list", env=environment))
    assert "given twice" in one_sentence(run("--context", "prod", "topic", "list", "--context", "dev", env=environment))


def test_context_is_an_option_of_each_command_with_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    save(path_of({"XDG_CONFIG_HOME": str(tmp_path)}), PROD)
    for path, command in LEAVES.items():
        if any(parameter.name == "bootstrap" for parameter in command.params) and not path.startswith("context"):
            assert any("--context" in parameter.opts for parameter in command.params), path
    assert LEAVES["topic list"].make_context("topic list", ["--context", "dev"]).params["bootstrap"] == "d:1"


# -- client configuration -----------------------------------------------------------------------------------------------

SECURE = 'security.protocol=SASL_SSL\nsasl.jaas.config=a.ScramLoginModule required username="alice" password="hunter2-secret";\n'


def properties(folder: Path, name: str, text: str = SECURE) -> str:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


def test_context_may_name_a_client_configuration_beside_the_file(tmp_path: Path) -> None:
    """The folder of the configuration file can be moved, or shared by several machines."""
    path = path_of({"XDG_CONFIG_HOME": str(tmp_path)})
    save(path, Contexts({"prod": {"bootstrap": "p:1", "client_config": "prod.properties"}}, "prod"))
    assert choose(None, None, {}, tmp_path, path).client_config == str(path.parent / "prod.properties")


def test_local_cluster_names_its_client_configuration(tmp_path: Path) -> None:
    local(tmp_path, "cluster/cluster.json")
    state = json.loads((tmp_path / "cluster/cluster.json").read_text())
    (tmp_path / "cluster/cluster.json").write_text(json.dumps({**state, "client_config": "secrets/admin.properties"}))
    found = choose(None, None, {}, tmp_path, tmp_path / "no.toml")
    assert found.client_config == str(tmp_path / "cluster/secrets/admin.properties")


@pytest.mark.parametrize(
    ("context", "config", "environment", "expected"),
    [
        (None, "o.properties", {"STRANDLINE_CLIENT_CONFIG": "e.properties"}, "o.properties"),
        ("prod", None, {"STRANDLINE_CLIENT_CONFIG": "e.properties"}, "p.properties"),
        ("dev", None, {"STRANDLINE_CLIENT_CONFIG": "e.properties"}, "e.properties"),
        (None, None, {"STRANDLINE_CLIENT_CONFIG": "e.properties"}, "e.properties"),
        (None, None, {}, "p.properties"),
        (None, None, {"STRANDLINE_BOOTSTRAP": "e:1"}, None),
    ],
    ids=["--client-config", "--context", "--context without one", "STRANDLINE_CLIENT_CONFIG", "current", "address alone"],
)
def test_nearer_client_configuration_counts(
    tmp_path: Path, context: str | None, config: str | None, environment: dict[str, str], expected: str | None
) -> None:
    path = path_of({"XDG_CONFIG_HOME": str(tmp_path)})
    contexts = {"prod": {"bootstrap": "p:1", "client_config": "/p.properties"}, "dev": {"bootstrap": "d:1"}}
    save(path, Contexts(contexts, "prod"))
    (tmp_path / "e.properties").write_text("")
    environment = {k: str(tmp_path / v) if v.endswith("properties") else v for k, v in environment.items()}
    given = str(tmp_path / config) if config else None
    if given:
        Path(given).write_text("")
    found = choose(None, context, environment, tmp_path, path, config_option=given).client_config
    assert (None if found is None else Path(found).name) == expected


def test_address_in_the_client_configuration_is_used(tmp_path: Path) -> None:
    config = properties(tmp_path, "client.properties", "bootstrap.servers=f:1\n" + SECURE)
    nothing = tmp_path / "no.toml"
    assert choose(None, None, {}, tmp_path, nothing, config_option=config).bootstrap == "f:1"
    assert choose("o:1", None, {}, tmp_path, nothing, config_option=config).bootstrap == "o:1"
    assert choose(None, None, BOOTSTRAP, tmp_path, nothing, config_option=config).bootstrap == "e:1"


def test_context_add_keeps_the_client_configuration(tmp_path: Path) -> None:
    config, env = properties(tmp_path, "client.properties"), {"XDG_CONFIG_HOME": str(tmp_path / "config")}
    assert run("context", "add", "prod", "p:1", "--client-config", config, env=env).code == 0
    assert run("context", "show", "--json", env=env).json()["client_config"] == config
    refused = run("context", "add", "dev", "d:1", "--client-config", str(tmp_path / "none"), env=env)
    assert (refused.code, "cannot read" in refused.err) == (2, True)


def test_wrong_client_configuration_is_one_sentence(tmp_path: Path) -> None:
    config = properties(tmp_path, "client.properties", "security.protocol=SASL_SSL\nsasl.mechanism=GSSAPI\n")
    for words in (("topic", "list", "--client-config", config), ("--client-config", config, "topic", "list")):
        found = run(*words, "-b", "127.0.0.1:1")
        assert found.code == 2
        assert "sasl_mechanism must be SCRAM-SHA-256" in one_sentence(found)


def test_secret_that_others_may_read_is_noted(tmp_path: Path) -> None:
    config = properties(tmp_path, "client.properties")
    Path(config).chmod(0o644)
    found = run("topic", "list", "-b", "127.0.0.1:1", "--command-config", config)
    assert f"chmod 600 {config}" in found.err
    assert "hunter2" not in found.err
