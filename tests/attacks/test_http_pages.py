"""Anonymous clients ask for pages without a pause: requests are limited, and customers' are not."""

import time

import pytest

from posthouse.entrypoints.http.request_limits import PIECE_BYTES
from tests.support.service import Service

# Less than the service's default, and used up sooner.
LITTLE = {"HTTP__UNAUTHENTICATED_PER_SECOND": "10", "HTTP__UNAUTHENTICATED_BURST": "40"}


@pytest.fixture
def http_process_settings() -> dict[str, str]:
    return LITTLE


async def until_limited(service: Service, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    """The first answer that is not the usual one, and its body."""
    for _ in range(2_000):
        async with service.client.get(service.url + path, headers=headers) as response:
            if response.status == 429:
                return response.status, dict(response.headers), await response.read()
            await response.read()
    raise AssertionError("no request was limited")


@pytest.mark.parametrize("path", ["/openapi.json", "/docs", "/nowhere"])
async def test_pages_are_limited_per_address_and_mail_is_not(service: Service, path: str) -> None:
    tenant = await service.account()
    status, headers, body = await until_limited(service, path)
    assert status == 429
    assert int(headers["Retry-After"]) >= 1
    assert b'"code":"rate_limited"' in body
    for _ in range(20):
        await tenant.accepts()
    assert (await service.request("GET", "/healthz")).status == 200
    assert (await tenant.call("GET", "/v1/account")).status == 200


@pytest.mark.parametrize(
    "http_process_settings", [{"HTTP__UNAUTHENTICATED_PER_SECOND": "1", "HTTP__UNAUTHENTICATED_BURST": "40"}]
)
async def test_a_large_page_counts_by_its_size(service: Service) -> None:
    sizes = []
    for _ in range(40):
        async with service.client.get(service.url + "/openapi.json") as response:
            if response.status == 429:
                break
            sizes.append(int(response.headers["Content-Length"]))
    assert sizes
    assert 1 < len(sizes) <= 40 // (1 + sizes[0] // PIECE_BYTES) + 2


@pytest.mark.parametrize("path", ["/nowhere", "/v1/messages"])
async def test_a_refused_client_waits_for_its_answer(service: Service, path: str) -> None:
    for _ in range(2_000):
        began_at = time.monotonic()
        if (await service.request("GET", path)).status == 429:
            break
    assert time.monotonic() - began_at >= 0.25


async def test_wrong_credentials_are_limited_and_right_ones_are_not(service: Service) -> None:
    tenant = await service.account()
    for _ in range(2_000):
        answer = await tenant.send(authorization="Bearer ph_live_" + "x" * 43)
        if answer.status != 401:
            break
    assert answer.is_refusal(429, "rate_limited", "API key")
    await tenant.accepts()
