"""Settings come from a file and the environment, explain themselves, and never show a secret."""

# ruff: noqa: E501 (a table of bytes reads better unbroken)

import os
import tomllib
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given

from posthouse.config import ConfigError, config_file, load
from posthouse.config.installation import endpoint
from posthouse.config.section import is_secret
from posthouse.config.settings import section_types, variable
from posthouse.config.text import EXAMPLE_DATABASE_URL, commented_toml, generated, shown
from posthouse.flows.shared.tickets import LEASE as TICKET_LEASE
from posthouse.rules import retry
from posthouse.rules.claim import WORKER_LEASE
from posthouse.rules.lane import LaneLimits, Limits
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


def test_the_generated_file_loads_and_has_the_defaults(file: Path) -> None:
    settings = load(file)
    assert settings.database.url == EXAMPLE_DATABASE_URL
    assert settings.limits.warmup_limits == WARMUP_RECIPIENTS_BY_DAY
    assert list(settings.secrets.seal_key_bytes) == ["1"]
    assert len(settings.secrets.peppers.active.key) >= 32
    assert settings.stream.addresses == ()
    assert settings.lanes.limits == LaneLimits()
    assert settings.delivery.retry_schedule == retry.DELIVERY
    assert settings.workers.lease == WORKER_LEASE
    assert settings.workers.ticket_lease == TICKET_LEASE
    for section, kind in section_types().items():
        for name, field in kind.model_fields.items():
            if not field.is_required():
                assert getattr(getattr(settings, section), name) == field.default


def test_the_generated_file_explains_every_setting(file: Path) -> None:
    # With the defaults uncommented, the file still loads and names every setting.
    text = "\n".join(_uncommented(file.read_text()))
    named = {section: set(values) for section, values in tomllib.loads(text).items()}
    assert named == {section: set(kind.model_fields) for section, kind in section_types().items()}
    defaults = load(file)
    file.write_text(text)
    assert load(file) == defaults
    assert all(field.description for kind in section_types().values() for field in kind.model_fields.values())


def test_the_environment_wins_over_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTHOUSE_DATABASE__URL", "postgresql://elsewhere/posthouse")
    monkeypatch.setenv("POSTHOUSE_HTTP__PORT", "9000")
    monkeypatch.setenv("POSTHOUSE_LIMITS__WARMUP_LIMITS", "10, 20,30")
    monkeypatch.setenv("POSTHOUSE_SERVICE__RESOLVERS", "192.0.2.53:5353,2001:db8::53")
    monkeypatch.setenv("POSTHOUSE_DELIVERY__RETRY_MINUTES", "0, 0.5,10")
    monkeypatch.setenv("POSTHOUSE_DELIVERY__LIFETIME_HOURS", "1.5")
    settings = load(file)
    assert settings.delivery.retry_schedule == retry.Schedule(
        (timedelta(0), timedelta(seconds=30), timedelta(minutes=10)), 0.1, timedelta(minutes=90)
    )
    assert settings.database.url == "postgresql://elsewhere/posthouse"
    assert settings.http.port == 9000
    assert settings.limits.warmup_limits == (10, 20, 30)
    assert settings.service.resolver_endpoints == (("192.0.2.53", 5353), ("2001:db8::53", 53))


def test_the_environment_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = generated()
    monkeypatch.setenv("POSTHOUSE_DATABASE__URL", EXAMPLE_DATABASE_URL)
    monkeypatch.setenv("POSTHOUSE_SECRETS__PEPPER", secrets.pepper)
    monkeypatch.setenv("POSTHOUSE_SECRETS__JWT_SECRET", secrets.jwt_secret)
    monkeypatch.setenv("POSTHOUSE_SECRETS__SEAL_KEYS", f"old:{generated().seal_keys['1']},1:{secrets.seal_keys['1']}")
    monkeypatch.setenv("POSTHOUSE_SECRETS__SEAL_KEY_ACTIVE", "1")
    assert set(load().secrets.seal_key_bytes) == {"old", "1"}


def test_the_file_is_named_by_the_environment_or_in_the_directory(
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
    assert "database.url is missing: set url under [database], or POSTHOUSE_DATABASE__URL" in text
    assert (
        "missing are secrets.pepper, secrets.jwt_secret, secrets.seal_keys, secrets.seal_key_active: "
        "run `posthouse config init`" in text
    )


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("SECRETS__PEPPER", "short-secret", "secrets.pepper needs at least 32 characters, but has 12: restore it from your copy"),
        ("SECRETS__PEPPER", "ab" * 30, "secrets.pepper is too regular"),
        ("SECRETS__JWT_SECRET", "another-short", "secrets.jwt_secret needs at least 32 characters, but has 13: restore it from your copy of the settings, or replace"),
        ("SECRETS__SEAL_KEYS", "1:bm90IGEga2V5", "'1' that is not 32 bytes in base64: restore it from your copy"),
        ("SECRETS__SEAL_KEY_ACTIVE", "2", "[secrets] seal_key_active: '2' is not among seal_keys ('1'): name one of them"),
        ("DATABASE__URL", "mysql://there", "database.url must begin with postgresql://"),
        ("SERVICE__RESOLVERS", "dns.example.com", "not an IP address with an optional port"),
        ("LIMITS__WARMUP_LIMITS", "0", "limits.warmup_limits contains a number below 1"),
        ("HTTP__PORT", "99999", "http.port"),
        ("SERVICE__HOSTNAME", "mail server", "service.hostname is not a host name: write one such as mail.example.com"),
        ("INBOUND__RETURN_PATH_DOMAIN", "bounces", "inbound.return_path_domain has a domain of a single label; write it in full"),
        ("DELIVERY__SIMULATOR_DOMAIN", "", "delivery.simulator_domain has no domain; write one"),
        ("HTTP__PUBLIC_URL", "http://127.0.0.1.example.com", "http.public_url is not the beginning of a URL"),
        ("HTTP__PUBLIC_URL", "http://mail.example.com", "http.public_url is not the beginning of a URL"),
        ("HTTP__PUBLIC_URL", "https://mail.example.com/a b", "http.public_url is not the beginning of a URL"),
        ("HTTP__PUBLIC_URL", "https://mail.example.com/\r\nBcc:", "http.public_url is not the beginning of a URL"),
        ("INBOUND__FEEDBACK_ADDRESS", "fbl", "inbound.feedback_address"),
        ("SMTP__TLS_CERTIFICATE_FILE", "/etc/mail.pem", "[smtp] tls_certificate_file and tls_key_file belong together"),
        ("STREAM__SERVERS", "", 'stream.servers is neither "memory" nor addresses such as nats://127.0.0.1:4222'),
        ("STREAM__SERVERS", "nats:4222", "stream.servers is neither"),
        ("STREAM__SERVERS", "nats://one:4222,http://two:4222", "stream.servers is neither"),
        ("STREAM__SERVERS", "nats://:4222", "stream.servers is neither"),
        ("STREAM__SERVERS", "nats://host:port", "stream.servers is neither"),
        ("STREAM__SHARDS", "257", "stream.shards input should be less than or equal to 256"),
        ("STREAM__SHARDS", "0", "stream.shards"),
        ("STREAM__REPLICAS", "0", "stream.replicas"),
        ("DELIVERY__PORT", "0", "delivery.port"),
        ("DELIVERY__SESSIONS_MAX", "0", "delivery.sessions_max"),
        ("DELIVERY__RETRY_MINUTES", "1,-5", "delivery.retry_minutes holds more than 100 waits, or a wait below 0"),
        ("DELIVERY__RETRY_MINUTES", "soon", "delivery.retry_minutes"),
        ("DELIVERY__RETRY_MINUTES", "nan", "delivery.retry_minutes"),
        ("DELIVERY__LIFETIME_HOURS", "0", "delivery.lifetime_hours input should be greater than 0"),
        ("LANES__PER_SECOND", "0", "lanes.per_second input should be greater than 0"),
        ("LANES__PER_SECOND", "inf", "lanes.per_second"),
        ("LANES__CONNECTIONS_MAX", "0", "lanes.connections_max"),
        ("LANES__BY_NAME", "google: 50", 'lanes.by_name is not JSON: write it like {"google": {"per_second": 50}}'),
        ("LANES__BY_NAME", '{"gogle": {}}', "lanes.by_name has 'gogle', which is neither a domain nor a provider: write one of google,"),
        ("LANES__BY_NAME", '{"google": {"per_second": 0}}', "lanes.by_name.google.per_second input should be greater than 0"),
        ("LANES__BY_NAME", '{"google": {"rate": 5}}', "lanes.by_name.google.rate is not a setting: correct its name or remove it"),
        ("SERVICE__OWN_ADDRESSES", "here", "service.own_addresses holds 'here', which is not an IP address, such as 192.0.2.1"),
        ("DISK_SPACE__FREE_BYTES_MIN", "0", "disk_space.free_bytes_min input should be greater than or equal to 1"),
        ("DISK_SPACE__DATABASE_BYTES_MAX", "-1", "disk_space.database_bytes_max input should be greater than or equal to 0"),
        ("SERVICE__LOG_LEVEL", "loud", "service.log_level"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_named_and_not_repeated(
    file: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, expected: str
) -> None:
    monkeypatch.setenv(f"POSTHOUSE_{name}", value)
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert expected in str(caught.value)
    # Following that advice would make what is stored unreadable.
    assert "config init" not in str(caught.value)
    if name in ("SECRETS__PEPPER", "SECRETS__JWT_SECRET", "SECRETS__SEAL_KEYS"):
        assert (value.partition(":")[2] or value) not in str(caught.value)


def test_a_password_in_a_wrong_address_is_not_repeated(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTHOUSE_STREAM__SERVERS", "nats://me:hunter2@one:4222,two:4222")
    with pytest.raises(ConfigError, match=r"stream\.servers is neither") as caught:
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
    monkeypatch.setenv("POSTHOUSE_STREAM__SERVERS", given)
    assert load(file).stream.addresses == expected


def test_bounces_go_to_the_hostname_by_default(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTHOUSE_SERVICE__HOSTNAME", "mail.example.com")
    assert load(file).return_path == "mail.example.com"
    monkeypatch.setenv("POSTHOUSE_INBOUND__RETURN_PATH_DOMAIN", "Bounces.example.com")
    assert load(file).return_path == "bounces.example.com"


def test_lanes_have_their_own_limits_and_the_defaults_for_the_rest(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = file.read_text().replace("#burst = 100", "burst = 30") + (
        "\n[lanes.by_name.google]\nper_second = 50\nconnections_max = 10\n"
        '[lanes.by_name."Example.com"]\nper_second = 0.5\nconnections_max = 1\n'
        "[lanes.by_name.yahoo]\nburst = 7\n"
    )
    file.write_text(text)
    limits = load(file).lanes.limits
    assert limits.default == Limits(per_second=100, burst=30, per_second_start=20)
    assert limits.limits_of("google") == Limits(per_second=50, burst=25, connections_max=10)
    assert limits.limits_of("example.com") == Limits(per_second=0.5, burst=1, connections_start=1, connections_max=1)
    assert limits.limits_of("yahoo") == Limits(per_second=100, burst=7, per_second_start=20)
    assert limits.limits_of("example.net") == limits.default
    monkeypatch.setenv("POSTHOUSE_LANES__BY_NAME", '{"google": {"per_second": 5}}')
    assert load(file).lanes.limits.by_lane == {"google": Limits(per_second=5, burst=2)}
    assert shown(load(file))["lanes"]["by_name"] == {"google": {"per_second": 5}}


def test_lanes_can_be_given_in_one_line(file: Path) -> None:
    file.write_text(file.read_text().replace("#by_name = {}", "by_name = { google = { per_second = 50 } }"))
    assert load(file).lanes.limits.limits_of("google").per_second == 50


def test_one_secret_for_two_purposes_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTHOUSE_SECRETS__PEPPER", load(file).secrets.jwt_secret.get_secret_value())
    with pytest.raises(ConfigError, match="must differ"):
        load(file)


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        ("[http]\nprot = 1\n", 2, "http.prot is not a setting: did you mean port?"),
        ("[doctor]\nrate_per_minute = 3\n", 2, "doctor.rate_per_minute is not a setting: correct its name"),
        ("[smtpp]\nport = 1\n", 1, "smtpp is neither a setting nor a section: did you mean [smtp]?"),
        ("rate_burst_max = 1\n", 1, "rate_burst_max is neither a setting nor a section: correct its name"),
        ("[http]\n\nlog_level = 'info'\n", 3, "http.log_level is not a setting: it belongs under [service]"),
        ("messages_days = 9\n", 1, "messages_days is neither a setting nor a section: write it under [retention]"),
        ("[http]\nport = 99999\n", 2, "http.port input should be less than or equal to 65535"),
        ("http.port = 99999\n", 1, "http.port input should be less than or equal to 65535"),
        ("http = { port = 99999 }\n", 1, "http.port input should be less than or equal to 65535"),
        ("[smtp]\ntls_key_file = 'a'\n", 1, "[smtp] tls_certificate_file and tls_key_file belong together"),
        ("[lanes.by_name.'google']\nburst = 1\nper_second = 0\n", 3, "lanes.by_name.google.per_second input should be"),
        ('[service]\nsender = """\n[http]\nport = 1\n"""\n[http]\nport = "x"\n', 7, "http.port input should be a valid"),
        ("[http]\nport = \n", 2, "is not valid TOML"),
    ],
)  # fmt: skip
def test_a_fault_names_its_line_and_what_it_should_be(file: Path, text: str, line: int, expected: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert any(fault.where == f"{file}, line {line}" and expected in fault.text for fault in caught.value.faults), (
        caught.value.faults
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("POSTHOUSE_HTTP_HOSTS", "did you mean POSTHOUSE_HTTP__HOST?"),
        ("POSTHOUSE_HTTP__PROT", "did you mean POSTHOUSE_HTTP__PORT?"),
        ("POSTHOUSE_SECRETS__PEPER_FILE", "did you mean POSTHOUSE_SECRETS__PEPPER_FILE?"),
        ("POSTHOUSE_CONFG", "did you mean POSTHOUSE_CONFIG?"),
        ("posthouse_htp__port", "did you mean POSTHOUSE_HTTP__PORT?"),
        ("POSTHOUSE_ZZZ", "correct its name or unset it"),
    ],
)
def test_an_unknown_variable_is_refused_with_the_nearest(
    file: Path, monkeypatch: pytest.MonkeyPatch, name: str, expected: str
) -> None:
    monkeypatch.setenv(name, "8025")
    with pytest.raises(ConfigError, match="can't be used") as caught:
        load(file)
    assert f"{name} is not a setting: {expected}" in str(caught.value)


def test_addresses_that_kubernetes_sets_are_not_settings(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "POSTHOUSE_PORT": "tcp://10.0.0.1:8025",
        "POSTHOUSE_HTTP_PORT": "tcp://10.0.0.1:8025",
        "POSTHOUSE_SERVICE_HOST": "10.0.0.1",
        "POSTHOUSE_HTTP_SERVICE_PORT": "8025",
        "POSTHOUSE_HTTP_SERVICE_PORT_WEB": "8025",
        "POSTHOUSE_HTTP_PORT_8025_TCP": "tcp://10.0.0.1:8025",
        "POSTHOUSE_HTTP_PORT_8025_TCP_ADDR": "10.0.0.1",
        "POSTHOUSE_API_KEY": "ph_test_x",
    }.items():
        monkeypatch.setenv(name, value)
    load(file)


SECRETS = [
    (section, name)
    for section, kind in section_types().items()
    for name, field in kind.model_fields.items()
    if is_secret(field)
]


@pytest.mark.parametrize(("section", "name"), SECRETS)
def test_every_secret_can_be_read_from_a_file(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, section: str, name: str
) -> None:
    value = {
        "url": "postgresql://u:p@db/posthouse",
        "servers": "nats://u:p@nats:4222",
        "seal_keys": f"old:{generated().seal_keys['1']}\n1:{generated().seal_keys['1']}",
        "other_peppers": f"next:{generated().pepper}\nold:{generated().pepper}",
        "other_jwt_secrets": f"old:{generated().pepper}",
    }.get(name, generated().pepper)
    (tmp_path / "secret").write_text(f"{value}\n")

    monkeypatch.setenv(variable(section, f"{name}_file"), str(tmp_path / "secret"))
    from_environment = getattr(getattr(load(file), section), name)
    monkeypatch.delenv(variable(section, f"{name}_file"))

    lines = [line for line in file.read_text().splitlines() if not line.startswith(f"{name} = ")]
    lines.insert(lines.index(f"[{section}]") + 1, f'{name}_file = "{tmp_path / "secret"}"')
    file.write_text("\n".join(lines))
    from_file = getattr(getattr(load(file), section), name)
    monkeypatch.setenv(variable(section, name), value.replace("\n", ","))
    assert from_environment == from_file == getattr(getattr(load(file), section), name)


def test_the_secrets_are_those_that_are_known() -> None:
    assert [".".join(secret) for secret in SECRETS] == [
        "database.url", "secrets.pepper", "secrets.other_peppers", "secrets.jwt_secret", "secrets.other_jwt_secrets",
        "secrets.seal_keys", "stream.servers",
    ]  # fmt: skip


def test_a_secret_in_two_places_or_in_no_file_is_refused(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTHOUSE_SECRETS__PEPPER_FILE", str(tmp_path / "absent"))
    with pytest.raises(ConfigError) as caught:
        load(file)
    [fault] = caught.value.faults
    assert str(fault) == (
        f"POSTHOUSE_SECRETS__PEPPER_FILE: secrets.pepper_file names {tmp_path / 'absent'}, which can't be read: "
        "No such file or directory"
    )
    (tmp_path / "absent").write_text(" \n")
    with pytest.raises(ConfigError, match="which is empty"):
        load(file)
    monkeypatch.setenv("POSTHOUSE_SECRETS__PEPPER", generated().pepper)
    with pytest.raises(ConfigError, match="pepper_file is set, and so is the setting itself: remove one of them"):
        load(file)


def test_a_single_missing_secret_is_to_be_restored(file: Path) -> None:
    lines = [line for line in file.read_text().splitlines() if not line.startswith("pepper = ")]
    file.write_text("\n".join(lines))
    with pytest.raises(ConfigError, match=r"missing are secrets\.pepper: restore them from your copy") as caught:
        load(file)
    assert "config init" not in str(caught.value)


def test_a_section_is_not_a_setting(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text(f"http = 8025\n{file.read_text().replace('[http]', '[http-]')}")
    with pytest.raises(ConfigError, match=r"http is a section: write its settings under \[http\]"):
        load(file)
    monkeypatch.setenv("POSTHOUSE_HTTP", "8025")
    with pytest.raises(ConfigError, match=r"POSTHOUSE_HTTP names a section: .*such as POSTHOUSE_HTTP__HOST"):
        load(file)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:hunter2@db.example.com/posthouse",
        "postgresql://db.example.com/p?user=me&password=hunter2",
    ],
)
def test_no_secret_is_ever_shown(file: Path, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("POSTHOUSE_DATABASE__URL", url)
    monkeypatch.setenv(
        "POSTHOUSE_STREAM__SERVERS", "nats://me:hunter2@nats.example.com:4222,nats://hunter2@two.example.com"
    )
    settings = load(file)
    for text in (repr(settings), str(settings), repr(shown(settings))):
        assert "hunter2" not in text
        assert settings.secrets.pepper.get_secret_value() not in text
        assert settings.secrets.jwt_secret.get_secret_value() not in text
        assert settings.secrets.seal_keys["1"].get_secret_value() not in text
    assert "db.example.com" in str(shown(settings)["database"]["url"])
    assert (
        shown(settings)["stream"]["servers"] == "nats://(hidden)@nats.example.com:4222,nats://(hidden)@two.example.com"
    )
    assert set(shown(settings)) == set(section_types())


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
    monkeypatch.setenv("POSTHOUSE_SERVICE__OWN_ADDRESSES", "192.0.2.1, 2001:db8::1")
    assert load(file).service.own_addresses == ("192.0.2.1", "2001:db8::1")


def _uncommented(text: str) -> list[str]:
    return [line[1:] if line.startswith("#") and line[1:2] not in "# " else line for line in text.splitlines()]


PIECES = [
    b"\n", b'"', b"'", b"=", b"[", b"]", b"{", b"}", b"[[", b"\0", b"\xff", b"#", b"-1", b"1e999", b"nan", b"9" * 30, b"true",
    b"\\u0000", b'""', b"[]", b"{}", b"2026-11-15", b"127.0.0.1", b"::1", b"nats://", b"pepper", b"unknown = 1\n",
]  # fmt: skip


@pytest.mark.parametrize("value", ["9" * 5_000, "[" * 5_000, "{a=" * 5_000])
def test_a_value_too_long_or_too_deep_to_read_is_refused(file: Path, value: str) -> None:
    file.write_text(f"{file.read_text()}\nvalue = {value}\n")
    with pytest.raises(ConfigError, match="is not valid TOML"):
        load(file)


SETTINGS = [line for line in _uncommented(commented_toml(generated())) if line and not line.startswith("#")]


@bad_input("Configuration file", 300)
@given(spoiled(["\n".join(SETTINGS).encode()], PIECES))
def test_a_damaged_file_is_read_or_refused_with_a_reason(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "damaged.toml"
    path.write_bytes(raw)
    with suppress(ConfigError):
        load(path)
