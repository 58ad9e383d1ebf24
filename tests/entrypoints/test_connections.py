"""Which servers the processes connect to, as their settings say."""

from ipaddress import ip_address

import pytest

from posthouse.compose.connections import may_connect, target_of
from posthouse.config import Settings
from posthouse.rules.refusal import Refusal
from tests.support.service import settings_for, settings_from

ADDRESSES = ("9.9.9.9", "2620:fe::fe", "9.9.9.10", "192.0.2.1", "10.0.0.1", "127.0.0.1", "::1")


@pytest.fixture
def settings() -> Settings:
    chosen = {
        "POSTHOUSE_SERVICE__HOSTNAME": "mail.example.net",
        "POSTHOUSE_SERVICE__OWN_ADDRESSES": "9.9.9.10",
        "POSTHOUSE_SERVICE__OWN_DOMAINS": "app.example.net",
        "POSTHOUSE_INBOUND__RETURN_PATH_DOMAIN": "bounces.example.net",
    }
    return settings_from(settings_for("postgresql://posthouse@127.0.0.1/posthouse") | chosen)


def test_only_public_servers_that_are_not_ours_are_connected_to(settings: Settings) -> None:
    may = may_connect(settings, allow_loopback=False)
    assert [address for address in ADDRESSES if may(ip_address(address))] == ["9.9.9.9", "2620:fe::fe"]


@pytest.mark.parametrize(
    "host", ["mail.example.net", "bounces.example.net", "app.example.net", "x.app.example.net", "9.9.9.10"]
)
def test_no_webhook_leads_to_this_installation(settings: Settings, host: str) -> None:
    check = target_of(settings)
    assert check("https://example.com/events").host == "example.com"
    with pytest.raises(Refusal, match=r"this service itself|not public"):
        check(f"https://{host}/events")
