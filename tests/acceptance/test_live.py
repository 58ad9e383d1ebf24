"""Live hints: ids of what is new in the account, to those who may read it, for as long as they may."""

import asyncio
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from posthouse.rules import ids, live
from tests.support.accept_flow import new_id
from tests.support.eventually import eventually, used_in_time
from tests.support.live_stream import PATH, LiveStream, open_stream
from tests.support.service import PASSWORD, Service, StartService, Tenant, uuid


async def new_token(tenant: Tenant, role: str = "viewer") -> tuple[str, str]:
    """A new user's address, and the token of their login."""
    email = await tenant.user(role)
    return email, f"Bearer {(await tenant.service.login(email, PASSWORD)).body['token']}"


async def add_results(tenant: Tenant, message_id: str, count: int = 1) -> list[str]:
    """Results of the message's recipients, as delivery writes them; the ids of the recipients."""
    now = datetime.now(UTC)
    await tenant.service.sql(
        "INSERT INTO events (account_id, id, message_id, position, type, created_at, body)"
        " SELECT $1, new.id, $2, new.position, 'email.delivered', $3, ''"
        " FROM unnest($4::uuid[], $5::smallint[]) new(id, position)",
        tenant.id,
        uuid(message_id),
        now,
        [new_id(now) for _ in range(count)],
        [number % 50 for number in range(count)],
    )
    message = ids.MessageId(UUID(str(uuid(message_id))))
    return [ids.text(ids.RECIPIENT, ids.recipient_id(message, number % 50)) for number in range(count)]


@pytest.mark.rule("LIV-01")
async def test_a_stream_begins_immediately_and_is_not_cached_or_buffered(tenant: Tenant) -> None:
    _, token = await new_token(tenant, "viewer")
    async with open_stream(tenant.service, token, {"Accept-Encoding": "gzip, br"}) as stream:
        headers = stream.response.headers
        assert stream.response.status == 200
        assert headers["Content-Type"] == "text/event-stream; charset=utf-8"
        assert (headers["Cache-Control"], headers["X-Accel-Buffering"]) == ("no-store", "no")
        assert "Content-Encoding" not in headers
        assert await stream.comment() == b":\n\n"
        assert await stream.event() == ("ready", {})
    async with tenant.service.client.head(tenant.service.url + PATH, headers={"Authorization": token}) as answer:
        assert answer.status == 200


@pytest.mark.rule("LIV-02")
async def test_what_is_accepted_and_final_is_named_only_to_its_account(tenant: Tenant, other_tenant: Tenant) -> None:
    service = tenant.service
    async with (
        open_stream(service, await tenant.jwt("viewer")) as stream,
        open_stream(service, await other_tenant.jwt("owner")) as other,
    ):
        await stream.ready()
        await other.ready()
        sent = (await tenant.accepts())["id"]
        assert await stream.event() == ("accepted", {"message_ids": [sent]})
        (recipient,) = await add_results(tenant, sent)
        expected = {"recipients": [{"recipient_id": recipient, "message_id": sent}]}
        assert await stream.event() == ("final", expected)
        theirs = (await other_tenant.accepts())["id"]
        assert await other.event() == ("accepted", {"message_ids": [theirs]})


@pytest.mark.rule("LIV-03")
async def test_more_than_a_stream_names_at_once_is_a_resync(tenant: Tenant) -> None:
    sent = (await tenant.accepts())["id"]
    async with open_stream(tenant.service, await tenant.jwt("viewer")) as stream:
        await stream.ready()
        await add_results(tenant, sent, live.NAMED_MAX + 1)
        assert await stream.event() == ("resync", {})


@pytest.mark.rule("LIV-04")
async def test_a_stream_ends_with_its_session_its_membership_and_its_token(tenant: Tenant) -> None:
    service = tenant.service
    await tenant.jwt()
    async with AsyncExitStack() as stack:

        async def opened(seconds: float) -> LiveStream | None:
            soon = int((datetime.now(UTC) + timedelta(seconds=seconds)).timestamp())
            stream = await stack.enter_async_context(open_stream(service, await tenant.forged(exp=soon)))
            return stream if stream.response.status == 200 and await stream.event() == ("ready", {}) else None

        _, logged_out = await new_token(tenant)
        removed_email, removed = await new_token(tenant)
        streams = [await stack.enter_async_context(open_stream(service, token)) for token in (logged_out, removed)]
        for stream in streams:
            await stream.ready()
        streams.append(await used_in_time(opened, 2))
        await service.request("POST", "/v1/auth/logout", headers={"Authorization": logged_out})
        members = (await tenant.call("GET", "/v1/members")).body["members"]
        (member,) = [found["id"] for found in members if found["email"] == removed_email]
        assert (await tenant.call("DELETE", f"/v1/members/{member}")).status == 200
        for stream in streams:
            name, content = await stream.event()
            assert (name, content["code"]) == ("end", "unauthorized")
            assert await stream.is_closed()


@pytest.mark.rule("LIV-05")
async def test_a_process_that_stops_ends_its_streams(tenant: Tenant, start_service: StartService) -> None:
    service = await start_service()
    token = await tenant.jwt("viewer")
    async with open_stream(service, token) as stream:
        await stream.ready()
        stopping = asyncio.create_task(service.stop())
        name, content = await stream.event()
        assert (name, content["code"]) == ("end", "service_unavailable")
        assert await stream.is_closed()
    await stopping


@pytest.mark.rule("LIV-06")
async def test_a_user_has_a_limited_number_of_streams_at_a_time(tenant: Tenant) -> None:
    service = tenant.service
    _, token = await new_token(tenant)
    async with AsyncExitStack() as stack:
        for _ in range(live.STREAMS_PER_USER_MAX):
            stream = await stack.enter_async_context(open_stream(service, token))
            assert stream.response.status == 200
        refused = await service.request("GET", PATH, headers={"Authorization": token})
        assert (refused.status, refused.body["code"]) == (429, "rate_limited")
        assert refused.headers["Retry-After"]
        others = await stack.enter_async_context(open_stream(service, await tenant.jwt("viewer")))
        assert others.response.status == 200
    await _is_open_again(service, token)


async def _is_open_again(service: Service, token: str) -> None:
    """The places come back when the process notices that the clients left."""

    async def status() -> int:
        async with open_stream(service, token) as stream:
            return stream.response.status

    await eventually(status, lambda found: found == 200)
