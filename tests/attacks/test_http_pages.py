"""Anonymous clients ask for pages without a pause: pages are encoded once, requests limited, customers don't notice."""

import time

import pytest

from posthouse.entrypoints.http.request_limits import PIECE_BYTES
from tests.attacks.neighbours import attack, measure, require_undisturbed
from tests.support.server_process import ServerProcess
from tests.support.service import Service, Tenant

CONNECTIONS = 16
# The service's default, which other tests set out of the way; and less, which is used up sooner.
ORDINARY = {"HTTP__UNAUTHENTICATED_PER_SECOND": "50", "HTTP__UNAUTHENTICATED_BURST": "200"}
LITTLE = {"HTTP__UNAUTHENTICATED_PER_SECOND": "10", "HTTP__UNAUTHENTICATED_BURST": "40"}

ATTACK = """
import socket, sys, threading
request = sys.argv[3].encode().decode("unicode_escape").encode()
def ask():
    while True:
        try:
            with socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=10) as connection:
                connection.sendall(request)
                while connection.recv(1 << 20):
                    pass
        except OSError:
            pass
for _ in range(int(sys.argv[2])):
    threading.Thread(target=ask, daemon=True).start()
print("begun", flush=True)
threading.Event().wait()
"""


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


@pytest.mark.nightly
@pytest.mark.parametrize("http_process_settings", [ORDINARY])
@pytest.mark.parametrize(
    "request_line",
    [
        pytest.param("GET /openapi.json", id="document"),
        pytest.param("GET /docs/swagger-ui-bundle.js", id="script"),
        pytest.param("GET /v1/messages", id="no credential"),
        pytest.param("POST /emails", id="wrong key"),
    ],
)
async def test_a_flood_without_a_valid_credential_does_not_delay_mail(
    http_process: ServerProcess, service: Service, request_line: str
) -> None:
    tenant = await service.account()
    alone = await warm(tenant)
    credential = f"Authorization: Bearer ph_live_{'x' * 43}\\r\\n" if request_line.startswith("POST") else ""
    request = f"{request_line} HTTP/1.1\\r\\nHost: x\\r\\n{credential}Connection: close\\r\\n\\r\\n"
    async with attack(ATTACK, str(http_process.port), str(CONNECTIONS), request):
        during = await measure(tenant.accepts, 80)
    require_undisturbed(alone, during)


async def warm(tenant: Tenant) -> list[float]:
    await measure(tenant.accepts, 10)
    return await measure(tenant.accepts, 40)
