"""Settings come from a file and the environment, explain themselves, and never show a secret."""

# ruff: noqa: E501 (a table of bytes reads better unbroken)

import os
import tomllib
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given

from posthouse.config import ConfigError, Settings, config_file, default_of, endpoint, load
from posthouse.config_text import EXAMPLE_DATABASE_URL, commented_toml, generated, shown
from posthouse.flows.shared.tickets import LEASE as TICKET_LEASE
from posthouse.rules import retry
from posthouse.rules.lane import LaneLimits, Limits
from posthouse.rules.lease import WORKER_LEASE
from posthouse.rules.limits import WARMUP_RECIPIENTS_BY_DAY
from tests.support.bad_input import bad_input, spoiled


@pytest.fixture(autouse=True)
def _empty_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith("POSTHOUSE_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "posthouse.toml"
    path.write_text(commented_toml(generated()))
    return path


def test_the_generated_file_loads_as_it_is_and_means_the_defaults(file: Path) -> None:
    settings = load(file)
    assert settings.database_url == EXAMPLE_DATABASE_URL
    assert settings.warmup_limits == WARMUP_RECIPIENTS_BY_DAY
    assert list(settings.seal_key_bytes) == ["1"]
    assert len(settings.pepper_bytes) >= 32
    assert settings.stream_servers == ()
    assert settings.lane_limits == LaneLimits()
    assert settings.delivery_schedule == retry.DELIVERY
    assert settings.worker_lease == WORKER_LEASE
    assert settings.ticket_lease == TICKET_LEASE
    for name in Settings.model_fields:
        if default_of(name) is not None:
            assert getattr(settings, name) == default_of(name)


def test_the_generated_file_explains_every_setting(file: Path) -> None:
    # With the defaults uncommented, the file still loads and names every field.
    text = "\n".join(
        line[1:] if line.startswith("#") and line[1:2] not in "# " else line for line in file.read_text().splitlines()
    )
    assert set(tomllib.loads(text)) == set(Settings.model_fields)
    defaults = load(file)
    file.write_text(text)
    assert load(file) == defaults
    assert all(field.description for field in Settings.model_fields.values())


def test_the_environment_wins_over_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTHOUSE_DATABASE_URL", "postgresql://elsewhere/posthouse")
    monkeypatch.setenv("POSTHOUSE_HTTP_PORT", "9000")
    monkeypatch.setenv("POSTHOUSE_WARMUP_LIMITS", "10, 20,30")
    monkeypatch.setenv("POSTHOUSE_RESOLVERS", "192.0.2.53:5353,2001:db8::53")
    monkeypatch.setenv("POSTHOUSE_DELIVERY_RETRY_MINUTES", "0, 0.5,10")
    monkeypatch.setenv("POSTHOUSE_DELIVERY_LIFETIME_HOURS", "1.5")
    settings = load(file)
    assert settings.delivery_schedule == retry.Schedule(
        (timedelta(0), timedelta(seconds=30), timedelta(minutes=10)), 0.1, timedelta(minutes=90)
    )
    assert settings.database_url == "postgresql://elsewhere/posthouse"
    assert settings.http_port == 9000
    assert settings.warmup_limits == (10, 20, 30)
    assert settings.resolver_endpoints == (("192.0.2.53", 5353), ("2001:db8::53", 53))


def test_the_environment_alone_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = generated()
    monkeypatch.setenv("POSTHOUSE_DATABASE_URL", EXAMPLE_DATABASE_URL)
    monkeypatch.setenv("POSTHOUSE_PEPPER", secrets.pepper)
    monkeypatch.setenv("POSTHOUSE_JWT_SECRET", secrets.jwt_secret)
    monkeypatch.setenv("POSTHOUSE_SEAL_KEYS", f"old:{generated().seal_keys['1']},1:{secrets.seal_keys['1']}")
    monkeypatch.setenv("POSTHOUSE_SEAL_KEY_ACTIVE", "1")
    assert set(load().seal_key_bytes) == {"old", "1"}


def test_the_file_is_found_where_the_environment_or_the_directory_says(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert config_file() == Path("posthouse.toml")
    other = tmp_path / "other.toml"
    other.write_text(file.read_text())
    monkeypatch.setenv("POSTHOUSE_CONFIG", str(other))
    assert config_file() == other
    monkeypatch.setenv("POSTHOUSE_CONFIG", str(tmp_path / "absent.toml"))
    with pytest.raises(ConfigError, match="not a file: correct it, or write one with `posthouse config init"):
        load()


def test_missing_secrets_say_how_to_make_them(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError) as caught:
        load()
    text = str(caught.value)
    assert "database_url is missing: set it, or POSTHOUSE_DATABASE_URL" in text
    assert "missing are pepper, jwt_secret, seal_keys, seal_key_active: run `posthouse config init`" in text


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("PEPPER", "short-secret", "pepper needs at least 32 characters: run `posthouse config init`"),
        ("PEPPER", "ab" * 30, "pepper is too regular"),
        (
            "JWT_SECRET",
            "another-short",
            "jwt_secret needs at least 32 characters: run `posthouse config init`",
        ),
        ("SEAL_KEYS", "1:bm90IGEga2V5", "'1' that is not 32 bytes in base64: run `posthouse config init`"),
        ("SEAL_KEY_ACTIVE", "2", "'2' is not among seal_keys"),
        ("DATABASE_URL", "mysql://there", "database_url must begin with postgresql://"),
        ("RESOLVERS", "dns.example.com", "not an IP address with an optional port"),
        ("WARMUP_LIMITS", "0", "warmup_limits holds a number below 1"),
        ("HTTP_PORT", "99999", "http_port"),
        ("HOSTNAME", "mail server", "hostname is not a host name: write one such as mail.example.com"),
        ("RETURN_PATH_DOMAIN", "bounces", "return_path_domain has a domain of a single label; write it in full"),
        ("SIMULATOR_DOMAIN", "", "simulator_domain has no domain; write one"),
        ("PUBLIC_URL", "http://mail.example.com", "public_url is not the beginning of a URL"),
        ("PUBLIC_URL", "https://mail.example.com/a b", "public_url is not the beginning of a URL"),
        ("PUBLIC_URL", "https://mail.example.com/\r\nBcc:", "public_url is not the beginning of a URL"),
        ("FEEDBACK_ADDRESS", "fbl", "feedback_address"),
        ("TLS_CERTIFICATE_FILE", "/etc/mail.pem", "tls_certificate_file and tls_key_file belong together"),
        ("STREAM", "", 'stream is neither "memory" nor addresses such as nats://127.0.0.1:4222'),
        ("STREAM", "nats:4222", "stream is neither"),
        ("STREAM", "nats://one:4222,http://two:4222", "stream is neither"),
        ("STREAM", "nats://:4222", "stream is neither"),
        ("STREAM", "nats://host:port", "stream is neither"),
        ("STREAM_SHARDS", "257", "stream_shards input should be less than or equal to 256"),
        ("STREAM_SHARDS", "0", "stream_shards"),
        ("STREAM_REPLICAS", "0", "stream_replicas"),
        ("SMTP_PORT", "0", "smtp_port"),
        ("DELIVERY_SESSIONS_MAX", "0", "delivery_sessions_max"),
        ("DELIVERY_RETRY_MINUTES", "1,-5", "delivery_retry_minutes holds more than 100 waits, or one below 0"),
        ("DELIVERY_RETRY_MINUTES", "soon", "delivery_retry_minutes"),
        ("DELIVERY_RETRY_MINUTES", "nan", "delivery_retry_minutes"),
        ("DELIVERY_LIFETIME_HOURS", "0", "delivery_lifetime_hours input should be greater than 0"),
        ("LANE_PER_SECOND", "0", "lane_per_second input should be greater than 0"),
        ("LANE_PER_SECOND", "inf", "lane_per_second"),
        ("LANE_CONNECTIONS_MAX", "0", "lane_connections_max"),
        ("LANES", "google: 50", 'lanes is not JSON: write it like {"google": {"per_second": 50}}'),
        ("LANES", '{"gogle": {}}', "lanes has 'gogle', which is neither a domain nor a provider: write one of google,"),
        ("LANES", '{"google": {"per_second": 0}}', "lanes.google.per_second input should be greater than 0"),
        ("LANES", '{"google": {"rate": 5}}', "lanes.google.rate is not a setting: correct its name or remove it"),
        ("OWN_ADDRESSES", "here", "own_addresses holds 'here', which is no IP address, such as 192.0.2.1"),
        ("STORAGE_FREE_BYTES_MIN", "0", "storage_free_bytes_min input should be greater than or equal to 1"),
        ("STORAGE_BYTES_MAX", "-1", "storage_bytes_max input should be greater than or equal to 0"),
        ("LOG_LEVEL", "loud", "log_level"),
    ],
)
def test_a_wrong_value_is_named_and_not_repeated(
    file: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str
) -> None:
    monkeypatch.setenv(f"POSTHOUSE_{name}", value)
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert said in str(caught.value)
    if name in ("PEPPER", "JWT_SECRET", "SEAL_KEYS"):
        assert value.partition(":")[2] or value not in str(caught.value)


def test_a_password_in_a_wrong_address_is_not_repeated(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTHOUSE_STREAM", "nats://me:hunter2@one:4222,two:4222")
    with pytest.raises(ConfigError, match="stream is neither") as caught:
        load(file)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("memory", ()),
        ("nats://127.0.0.1:4222", ("nats://127.0.0.1:4222",)),
        ("nats://me:secret@one:4222, tls://two", ("nats://me:secret@one:4222", "tls://two")),
        ("nats://[::1]:4222", ("nats://[::1]:4222",)),
    ],
)
def test_the_stream_is_memory_or_addresses(
    file: Path, monkeypatch: pytest.MonkeyPatch, given: str, expected: tuple[str, ...]
) -> None:
    monkeypatch.setenv("POSTHOUSE_STREAM", given)
    assert load(file).stream_servers == expected


def test_bounces_come_back_to_the_hostname_unless_told_otherwise(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTHOUSE_HOSTNAME", "mail.example.com")
    assert load(file).return_path == "mail.example.com"
    monkeypatch.setenv("POSTHOUSE_RETURN_PATH_DOMAIN", "Bounces.example.com")
    assert load(file).return_path == "bounces.example.com"


def test_lanes_have_limits_of_their_own_and_the_defaults_for_the_rest(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = file.read_text().replace("#lane_burst = 100", "lane_burst = 30") + (
        "\n[lanes.google]\nper_second = 50\nconnections_max = 10\n"
        '[lanes."Example.com"]\nper_second = 0.5\nconnections_max = 1\n'
        "[lanes.yahoo]\nburst = 7\n"
    )
    file.write_text(text)
    limits = load(file).lane_limits
    assert limits.default == Limits(per_second=100, burst=30)
    assert limits.of("google") == Limits(per_second=50, burst=50, connections_max=10)
    assert limits.of("example.com") == Limits(per_second=0.5, burst=1, connections_start=1, connections_max=1)
    assert limits.of("yahoo") == Limits(per_second=100, burst=7)
    assert limits.of("example.net") == limits.default
    monkeypatch.setenv("POSTHOUSE_LANES", '{"google": {"per_second": 5}}')
    assert load(file).lane_limits.by_lane == {"google": Limits(per_second=5, burst=5)}
    assert shown(load(file))["lanes"] == {"google": {"per_second": 5}}


def test_lanes_can_be_given_in_one_line(file: Path) -> None:
    file.write_text(file.read_text().replace("#lanes = {}", "lanes = { google = { per_second = 50 } }"))
    assert load(file).lane_limits.of("google").per_second == 50


def test_one_secret_for_two_purposes_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTHOUSE_PEPPER", load(file).jwt_secret.get_secret_value())
    with pytest.raises(ConfigError, match="must differ"):
        load(file)


def test_a_misspelt_setting_is_named(file: Path) -> None:
    file.write_text(file.read_text() + "\nrate_per_minute = 3\n")
    with pytest.raises(ConfigError, match="rate_per_minute is not a setting"):
        load(file)


def test_broken_toml_is_said_with_its_place(file: Path) -> None:
    file.write_text("pepper = \n")
    with pytest.raises(ConfigError, match=r"not valid TOML: .*line 1"):
        load(file)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:hunter2@db.example.com/posthouse",
        "postgresql://db.example.com/p?user=me&password=hunter2",
    ],
)
def test_no_secret_is_ever_shown(file: Path, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("POSTHOUSE_DATABASE_URL", url)
    monkeypatch.setenv("POSTHOUSE_STREAM", "nats://me:hunter2@nats.example.com:4222,nats://hunter2@two.example.com")
    settings = load(file)
    for text in (repr(settings), str(settings), repr(shown(settings))):
        assert "hunter2" not in text
        assert settings.pepper.get_secret_value() not in text
        assert settings.jwt_secret.get_secret_value() not in text
        assert settings.seal_keys["1"].get_secret_value() not in text
    assert "db.example.com" in str(shown(settings)["database_url"])
    assert shown(settings)["stream"] == "nats://(hidden)@nats.example.com:4222,nats://(hidden)@two.example.com"
    assert set(shown(settings)) == set(Settings.model_fields)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("192.0.2.1", ("192.0.2.1", 53)),
        ("192.0.2.1:5353", ("192.0.2.1", 5353)),
        ("::1", ("::1", 53)),
        ("[::1]", ("::1", 53)),
        ("[::1]:5353", ("::1", 5353)),
    ],
)
def test_resolvers_are_addresses_with_an_optional_port(given: str, expected: tuple[str, int]) -> None:
    assert endpoint(given) == expected


def test_addresses_of_our_own_can_be_named(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTHOUSE_OWN_ADDRESSES", "192.0.2.1, 2001:db8::1")
    assert load(file).own_addresses == ("192.0.2.1", "2001:db8::1")


def _uncommented(text: str) -> bytes:
    lines = [line[1:] if line.startswith("#") and line[1:2] not in "# " else line for line in text.splitlines()]
    return "\n".join([line for line in lines if not line.startswith("#") and line]).encode()


PIECES = [
    b"\n", b'"', b"'", b"=", b"[", b"]", b"{", b"}", b"[[", b"\0", b"\xff", b"#", b"-1", b"1e999", b"nan", b"9" * 30, b"true",
    b"\\u0000", b'""', b"[]", b"{}", b"2026-11-15", b"127.0.0.1", b"::1", b"nats://", b"pepper", b"unknown = 1\n",
]  # fmt: skip


@pytest.mark.parametrize("value", ["9" * 5_000, "[" * 5_000, "{a=" * 5_000])
def test_a_value_that_is_too_long_or_too_deep_to_read_is_told(file: Path, value: str) -> None:
    file.write_text(f"{file.read_text()}\nhttp_port = {value}\n")
    with pytest.raises(ConfigError, match="is not valid TOML"):
        load(file)


@bad_input("Configuration file", 300)
@given(spoiled([_uncommented(commented_toml(generated()))], PIECES))
def test_a_file_cut_and_damaged_is_read_or_refused_in_words(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "damaged.toml"
    path.write_bytes(raw)
    with suppress(ConfigError):
        load(path)
