import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from wings_core.errors import InvalidArgument
from wings_core.limits import Limits
from wings_server.settings import Address, Settings, load


def test_defaults_are_the_documented_ones() -> None:
    settings = load()
    assert settings == Settings()
    assert settings.data_dir == Path("wings-data")
    assert settings.flight == Address("127.0.0.1", 7777)
    assert settings.http == Address("127.0.0.1", 7780)
    assert settings.drain_seconds == 10
    assert settings.limits == Limits()


def test_the_example_has_every_setting_with_its_default(tmp_path: Path) -> None:
    example = Path(__file__).parents[3] / "deploy/wings.toml"
    assert load(example) == Settings()
    whole = tmp_path / "wings.toml"
    whole.write_text(re.sub(r"^#(?=\w+ = )", "", example.read_text(), flags=re.MULTILINE))
    settings = load(whole)
    assert settings.model_fields_set == set(Settings.model_fields)
    assert settings.limits.model_fields_set == set(Limits.model_fields)
    assert settings.limits == Limits()
    for name, default in Settings():
        if default is not None and default != ():
            assert getattr(settings, name) == default, name


def test_flags_win_over_environment_over_file_over_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "wings.toml"
    config.write_text('flight = "[::1]:1"\nhttp = "h:1"\nlog_level = "error"\ndrain_seconds = 1\n')
    monkeypatch.setenv("WINGS_FLIGHT", "127.0.0.1:2")
    monkeypatch.setenv("WINGS_HTTP", "h:2")
    settings = load(config, {"flight": "127.0.0.1:3", "log_level": None})
    assert settings.flight == Address("127.0.0.1", 3)
    assert settings.http == Address("h", 2)
    assert settings.log_level == "error"
    assert settings.drain_seconds == 1
    assert settings.data_dir == Path("wings-data")


def test_limits_are_merged_key_by_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "wings.toml"
    config.write_text("[limits]\nbatch_bytes_max = 1000\nwire_rows_max = 10\n")
    monkeypatch.setenv("WINGS_LIMITS__WIRE_ROWS_MAX", "20")
    limits = load(config).limits
    assert (limits.batch_bytes_max, limits.wire_rows_max) == (1000, 20)
    assert limits.http_bytes_max == Limits().http_bytes_max


def test_durations_are_seconds_or_have_a_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINGS_LIMITS__OBJECT_FLUSH_SECONDS", "500ms")
    monkeypatch.setenv("WINGS_NODE_LEASE_SECONDS", "5")
    settings = load(None, {"drain_seconds": "1m"})
    assert (settings.drain_seconds, settings.node_lease_seconds) == (60, 5)
    assert settings.limits.object_flush_seconds == 0.5
    with pytest.raises(InvalidArgument, match="--drain-seconds: "):
        load(None, {"drain_seconds": "1 minute"})


def test_the_constructor_does_not_read_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINGS_FLIGHT", "127.0.0.1:2")
    assert Settings().flight.port == 7777
    with pytest.raises(ValidationError):
        Settings(flihgt="127.0.0.1:2")  # pyright: ignore[reportCallIssue]


def test_variables_of_other_programs_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINGS_ENDPOINT", "grpc://elsewhere:7777")
    assert load() == Settings()


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("port = 3\n", "{config}: port: there is no such setting"),
        (
            "[limits]\nbatch_byte_max = 1\n",
            "limits.batch_byte_max: there is no such setting; did you mean 'batch_bytes_max'",
        ),
        ("[limits]\nbatch_bytes_max = 0\n", "{config}: limits.batch_bytes_max: input should be"),
        ('flight = "::1:3"\n', "{config}: flight: '::1:3' is not an address: expected HOST:PORT"),
        ("flight = 3\n", "{config}: flight: "),
        ('log_level = "loud"\ndrain_seconds = -1\n', "{config}: log_level: "),
        ('log_level = "loud"\ndrain_seconds = -1\n', "{config}: drain_seconds: "),
        ("flight = \n", "{config} is not TOML: "),
        (f"limits = {'[' * 100_000}", "{config} is not TOML: "),
        ('data_dir = ""\n', "{config}: data_dir: an empty path"),
    ],
)
def test_an_error_in_the_file_names_the_file_and_the_key(
    tmp_path: Path, toml: str, message: str
) -> None:
    config = tmp_path / "wings.toml"
    config.write_text(toml)
    with pytest.raises(InvalidArgument) as caught:
        load(config)
    assert message.format(config=config) in str(caught.value)


def test_a_missing_file_and_one_that_is_not_text_are_named(tmp_path: Path) -> None:
    config = tmp_path / "wings.toml"
    with pytest.raises(InvalidArgument, match=r"wings.toml cannot be read: No such file"):
        load(config)
    config.write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidArgument, match=r"wings.toml is not TOML: "):
        load(config)


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("WINGS_FLIGHT", "x", "WINGS_FLIGHT: 'x' is not an address"),
        ("WINGS_LIMITS__WIRE_ROWS_MAX", "no", "WINGS_LIMITS__WIRE_ROWS_MAX: input should be"),
        ("WINGS_LIMITS__NONE", "1", "WINGS_LIMITS__NONE: there is no such setting"),
        ("WINGS_LIMITS", '{"wire_rows_max": 0}', "WINGS_LIMITS.wire_rows_max: input should be"),
        ("WINGS_LIMITS", "{", "bad environment: "),
        ("WINGS_LIMITS", "[" * 100_000, "bad environment: "),
        ("WINGS_LIMITS", "5", "WINGS_LIMITS is not a JSON object, and WINGS_LIMITS__… is its key"),
        ("WINGS_ALLOWED_HOST__0", "a", "WINGS_ALLOWED_HOST is not a JSON object"),
        ("WINGS_DATA_DIR", "", "WINGS_DATA_DIR: an empty path"),
    ],
)
def test_an_error_in_the_environment_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str, value: str, message: str
) -> None:
    config = tmp_path / "wings.toml"
    config.write_text('flight = "127.0.0.1:1"\n')
    monkeypatch.setenv("WINGS_LIMITS__BATCH_BYTES_MAX", "1000000")
    monkeypatch.setenv("WINGS_ALLOWED_HOST", '["b"]')
    monkeypatch.setenv(variable, value)
    with pytest.raises(InvalidArgument) as caught:
        load(config)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"flight": "h:65536"}, "--flight: 'h:65536' is not an address"),
        ({"drain_seconds": -1.0}, "--drain-seconds: input should be greater"),
    ],
)
def test_an_error_in_a_flag_names_the_flag(
    monkeypatch: pytest.MonkeyPatch, flags: dict[str, Any], message: str
) -> None:
    monkeypatch.setenv("WINGS_FLIGHT", "127.0.0.1:1")
    with pytest.raises(InvalidArgument) as caught:
        load(None, flags)
    assert message in str(caught.value)


@given(
    host=st.sampled_from(["127.0.0.1", "localhost", "a-b.example", "::", "::1", "fe80::1%eth0"]),
    port=st.integers(0, 65_535),
)
def test_addresses_read_back_as_they_are_written(host: str, port: int) -> None:
    address = Address(host, port)
    assert Address.parse(str(address)) == address
    assert str(address).startswith("[") == (":" in host)


NOT_ADDRESSES = ["", ":", "h", "h:", ":1", "h:-1", "h:65536", "h:1x", "::1:1", "[::1]",
    "[::1:1", "h h:1", "grpc://h:1", "[]:1", "[h/x]:1", "h:\u0661"]  # fmt: skip


def test_what_is_not_an_address_is_refused(subtests: pytest.Subtests) -> None:
    for text in NOT_ADDRESSES:
        with subtests.test(f"{text!r:.60}"), pytest.raises(ValueError, match="is not an address"):
            Address.parse(text)


def test_the_address_of_postgres_comes_from_all_sources_and_is_never_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "postgresql://wings:secret@host/db"
    config = tmp_path / "wings.toml"
    config.write_text(f'metadata_url = "{secret}"\n')
    monkeypatch.setenv("WINGS_METADATA_URL", f"{secret}2")
    found = [load(config), load(None, {"metadata_url": f"{secret}3"})]
    monkeypatch.delenv("WINGS_METADATA_URL")
    found.append(load(config))
    urls = [settings.metadata_url for settings in found]
    assert [url and url.get_secret_value()[-3:] for url in urls] == ["db2", "db3", "/db"]
    assert "secret" not in f"{found}{found[0].model_dump_json()}"
    with pytest.raises(InvalidArgument, match="--metadata-url: expected postgresql://") as caught:
        load(None, {"metadata_url": "mysql://wings:secret@host/db"})
    assert "secret" not in str(caught.value)


def test_the_url_of_an_object_store_holds_no_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load(None, {"hot": "s3://bucket/prefix"}).hot == "s3://bucket/prefix"
    monkeypatch.setenv("WINGS_HOT", "s3://key:secret@bucket")
    with pytest.raises(InvalidArgument, match=r"WINGS_HOT: .*holds no credentials") as caught:
        load()
    assert "secret" not in caught.value.message
