"""Nothing but public addresses, in whatever form they come."""

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posthouse.rules.public_address import is_public
from tests.support.bad_input import bad_input


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.255.255.255",
        "168.63.129.16", "169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.192", "192.0.2.1",
        "192.88.99.1", "192.168.0.1", "198.18.0.1", "198.19.255.255", "198.51.100.7", "203.0.113.9",
        "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255",
        "::", "::1", "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:8.8.8.8", "::8.8.8.8", "64:ff9b::a9fe:a9fe",
        "64:ff9b::808:808", "64:ff9b:1::1", "100::1", "2001::1", "2001:0:4136:e378:8000:63bf:3fff:fdd2",
        "2001:2::1", "2001:10::1", "2001:20::1", "2001:db8::1", "2002:7f00:1::", "2002:808:808::1", "3fff::1",
        "5f00::1", "fc00::1", "fd00:ec2::254", "fe80::1", "fec0::1", "ff02::1",
    ],
)  # fmt: skip
def test_special_addresses_are_not_public(address: str) -> None:
    assert not is_public(ip_address(address))


@pytest.mark.parametrize(
    "address",
    ["1.1.1.1", "8.8.8.8", "100.63.255.255", "100.128.0.1", "172.15.0.1", "172.32.0.1", "192.0.1.1", "223.255.255.1",
     "2606:4700::1111", "2a00:1450:4001:80e::2003", "2001:4860:4860::8888", "2620:0:2d0:200::7"],
)  # fmt: skip
def test_public_addresses_are_public(address: str) -> None:
    assert is_public(ip_address(address))


def test_our_own_addresses_are_not_public() -> None:
    assert not is_public(IPv4Address("8.8.8.8"), {IPv4Address("8.8.8.8")})


@bad_input("Webhook URLs", 1_000)
@given(st.ip_addresses())
def test_we_are_stricter_than_the_standard_library(address: IPv4Address | IPv6Address) -> None:
    assert address.is_global or not is_public(address)


@bad_input("Webhook URLs", 500)
@given(st.ip_addresses(v=4))
def test_an_ipv4_address_in_disguise_is_never_public(address: IPv4Address) -> None:
    for disguise in (0, 0xFFFF << 32, 0x64FF9B << 96):
        assert not is_public(IPv6Address(disguise | int(address)))
    assert not is_public(IPv6Address(0x2002 << 112 | int(address) << 80))
