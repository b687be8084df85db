"""Settings: file, environment, overrides, and errors that name the place."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from agent3.errors import SetupError
from agent3.settings import POSITIVE, Calls, Client, Rule, Settings, data_folder, find_misspelt_variables, load


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No agent3.toml of the place where the tests are started."""
    monkeypatch.chdir(tmp_path)


def written(folder: Path, text: str) -> Path:
    file = folder / "given.toml"
    file.write_text(text)
    return file


def test_without_anything_there_are_defaults() -> None:
    assert load(environment={}) == Settings()
    assert Settings().server.host == "127.0.0.1"
    assert Settings().calls.ledger == "durable"


def test_later_ones_win(tmp_path: Path) -> None:
    file = written(tmp_path, '[calls]\ntimeout = 1.0\nretries = 1\nbackoff = 1.0\n[logs]\nformat = "json"\n')
    environment = {"AGENT3_CALLS_RETRIES": "2", "AGENT3_CALLS_BACKOFF": "2"}
    settings = load(file, environment, {"calls": {"backoff": 3.0, "timeout": None}})
    assert (settings.calls.timeout, settings.calls.retries, settings.calls.backoff) == (1.0, 2, 3.0)
    assert settings.logs.format == "json"


def test_the_file_of_the_folder_or_of_the_environment_is_read(tmp_path: Path) -> None:
    (tmp_path / "agent3.toml").write_text("[server]\nport = 1\n")
    assert load(environment={}).server.port == 1
    other = written(tmp_path, "[server]\nport = 2\n")
    assert load(environment={"AGENT3_CONFIG": str(other)}).server.port == 2
    assert load(other, {"AGENT3_CONFIG": "nowhere"}).server.port == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[calls]\ntimeuot = 1\n", "timeuot"),
        ("[cals]\n", "cals"),
        ("[calls]\ntimeout = 'soon'\n", "calls.timeout"),
        ("[calls]\nledger = 'sometimes'\n", "sometimes"),
        ("calls = 5\n", "[calls]"),
        ("[[rules]]\neffect = 'maybe'\n", "maybe"),
        ("[[clients]]\nkey = 'env:A'\n", "id"),
        ("[calls\n", "not valid TOML"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(SetupError) as wrong:
        load(written(tmp_path, text), {})
    assert words in wrong.value.message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[calls]\ntimeout = -1\n", "calls.timeout is -1, but must be more than 0"),
        ("[calls]\ntimeout = nan\n", "calls.timeout is nan, but must be a finite number"),
        ("[calls]\nattempt_timeout = 0\n", "calls.attempt_timeout is 0, but must be more than 0"),
        ("[limits]\nconcurrent = 0\n", "limits.concurrent is 0, but must be more than 0"),
        ("[limits]\nburst = 0\n", "limits.burst is 0, but must be more than 0"),
        ("[calls]\njob_days = -5\n", "calls.job_days is -5, but must be 0 or more"),
        ("[calls]\nledger_days = -1\n", "calls.ledger_days is -1, but must be 0 or more"),
        ("[server]\nport = 99999\n", "server.port is 99999, but must be at most 65535"),
        ("[[rates]]\nper_minute = 1\n[[rates]]\nper_minute = -1\n", "rates[1].per_minute is -1, but must be 0 or more"),
    ],
)
def test_a_number_out_of_bounds_is_refused_with_its_bound(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(SetupError, match=re.escape(words)):
        load(written(tmp_path, text), {})


def test_bounds_hold_for_the_environment_and_name_settings_that_exist() -> None:
    with pytest.raises(SetupError, match=r"calls\.retries is -1"):
        load(environment={"AGENT3_CALLS_RETRIES": "-1"})
    assert load(environment={"AGENT3_COSTS_WEB_PER_CALL": "-1"}).costs.web_per_call == -1
    kinds = get_type_hints(Settings)
    for table, names in POSITIVE.items():
        kind = (get_args(kinds[table]) or (kinds[table],))[0]
        assert names <= set(kind.__struct_fields__)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[calls]\ntimeuot = 1\n", "'calls' has no field 'timeuot'. Did you mean 'timeout'?"),
        ("[server]\ncolour = 1\n", "'server' has no field 'colour'. See docs/reference/settings.md"),
        ("[cals]\n", "there is no table 'cals'. Did you mean 'calls'?"),
        ("[[client]]\nid = 'a'\n", "there is no table 'client'. Did you mean 'clients'?"),
        ("[[clients]]\nid = 'a'\nkye = 'b'\n", "'clients' has no field 'kye'. Did you mean 'key'?"),
        ("[calls]\ntimeout = 'soon'\n", "calls.timeout"),
    ],
)
def test_a_word_that_is_misspelt_is_told_with_its_file_and_the_nearest(tmp_path: Path, text: str, words: str) -> None:
    file = written(tmp_path, text)
    with pytest.raises(SetupError) as wrong:
        load(file, {})
    assert wrong.value.message.startswith(f"settings: {file}: ")
    assert words in wrong.value.message


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"nowhere\.toml"):
        load(tmp_path / "nowhere.toml", {})
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SetupError, match="not valid TOML"):
        load(binary, {})


def test_the_environment_speaks_every_type() -> None:
    environment = {
        "AGENT3_SERVER_PORT": "80",
        "AGENT3_CALLS_TIMEOUT": "1.5",
        "AGENT3_CALLS_LEDGER": "batched",
        "AGENT3_OUTBOUND_ALLOW_PRIVATE": "true",
        "AGENT3_SERVER_ALLOWED_HOSTS": "a.test, b.test,",
        "AGENT3_SERVER_ALLOWED_ORIGINS": "",
    }
    settings = load(environment=environment)
    assert (settings.server.port, settings.calls.timeout, settings.calls.ledger) == (80, 1.5, "batched")
    assert settings.outbound.allow_private
    assert settings.server.allowed_hosts == ("a.test", "b.test")
    assert settings.server.allowed_origins == (), "an empty text names nobody, not the empty name"


@pytest.mark.parametrize("name", get_type_hints(Settings))
def test_every_table_can_be_written_in_a_file(tmp_path: Path, name: str) -> None:
    """``[access]`` was documented and refused: what a client may do by default could not be said."""
    is_list = isinstance(getattr(Settings(), name), tuple)
    load(written(tmp_path, f"{name} = []\n" if is_list else f"[{name}]\n"), {})
    text = '[access]\ndefault = "deny"\n[[clients]]\nid = "a"\nkey = "env:A"\ntenant = "blue"\n'
    assert load(written(tmp_path, text), {}).access.default == "deny"
    assert load(environment={"AGENT3_ACCESS_DEFAULT": "deny"}).access.default == "deny"


@pytest.mark.parametrize(
    ("name", "value"),
    [("AGENT3_SERVER_PORT", "many"), ("AGENT3_CALLS_LEDGER", "never"), ("AGENT3_OUTBOUND_ALLOW_PRIVATE", "perhaps")],
)
def test_what_is_wrong_in_the_environment_is_named(name: str, value: str) -> None:
    with pytest.raises(SetupError) as wrong:
        load(environment={name: value})
    assert name in wrong.value.message
    assert value in wrong.value.message


def test_clients_and_rules_come_in_order(tmp_path: Path) -> None:
    text = """
    [[clients]]
    id = "me"
    key = "env:MY_KEY"
    scopes = ["admin"]
    [[rules]]
    effect = "deny"
    agent = "pizza*"
    [[rules]]
    effect = "allow"
    """
    settings = load(written(tmp_path, text), {})
    assert settings.clients == (Client("me", "env:MY_KEY", ("admin",)),)
    assert settings.rules == (Rule("deny", agent="pizza*"), Rule("allow"))


def test_settings_are_frozen() -> None:
    with pytest.raises(AttributeError):
        Settings().calls.timeout = 5.0  # type: ignore[misc]
    assert Calls() == Calls()


def test_the_data_folder_can_be_chosen(tmp_path: Path) -> None:
    assert data_folder({"AGENT3_DATA": str(tmp_path)}) == tmp_path
    assert data_folder({"XDG_DATA_HOME": "/data"}).name == "agent3"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("AGENT3_SERVER_PROT", "Did you mean AGENT3_SERVER_PORT?"),
        ("AGENT3_PORT", "Did you mean AGENT3_SERVER_PORT?"),
        ("AGENT3_CONFG", "Did you mean AGENT3_CONFIG?"),
        ("AGENT3_CALLS_COLOUR", "See docs/reference/settings.md."),
    ],
)
def test_a_variable_that_was_meant_to_be_a_setting_is_told(name: str, meant: str) -> None:
    (said,) = find_misspelt_variables({name: "1", "AGENT3_CALLS_TIMEOUT": "5", "AGENT3_DATA": "/data", "PATH": "/bin"})
    assert said.startswith(f"The environment variable {name} is not a setting")
    assert said.endswith(meant)


def test_the_secrets_that_people_keep_are_no_settings() -> None:
    assert find_misspelt_variables({"AGENT3_PIZZA_TOKEN": "x", "AGENT3_CLIENT_KEY": "x", "HOME": "/"}) == []


def test_every_variable_that_is_documented_is_known() -> None:
    page = (Path(__file__).parents[1] / "docs" / "reference" / "settings.md").read_text()
    documented = set(re.findall(r"`(AGENT3_[A-Z0-9_]*[A-Z0-9])`", page))
    assert "AGENT3_FAILPOINTS_SEED" in documented
    assert find_misspelt_variables(dict.fromkeys(documented, "")) == []
