"""Servers of the stream are asked once whether they can be used: real ones, healthy and faulty."""

import pytest
from nats import connect

from posthouse.rules.check_up import StreamReplicas
from posthouse.wire.stream.jetstream import probe
from tests.support.nats import PrivateNats
from tools.private_postgres import free_port


class WithoutJetStream(PrivateNats):
    options = ()
    greeting = b"INFO"


class Guarded(PrivateNats):
    options = ("--jetstream", "--user", "ada", "--pass", "right")


async def test_a_server_with_jetstream_says_its_version_and_its_streams() -> None:
    with PrivateNats() as nats:
        said = await probe(nats.url)
        client = await connect(nats.url)
        await client.jetstream().add_stream(name="tickets", subjects=["tickets.>"])
        await client.close()
        later = await probe(nats.url)
    assert said.version[0] == 2
    assert (said.streams, said.stored_bytes) == ([], 0)
    assert later.streams == [StreamReplicas("tickets", 1)]


async def test_an_unreachable_server_is_reported_at_once() -> None:
    with pytest.raises(ConnectionError, match="Connect call failed"):
        await probe(f"nats://ada:hunter2@127.0.0.1:{free_port()}")


async def test_a_silent_server_times_out() -> None:
    with PrivateNats() as nats:
        nats.freeze()
        with pytest.raises(ConnectionError, match="no answer in time"):
            await probe(nats.url)


async def test_a_server_without_jetstream_is_refused() -> None:
    with WithoutJetStream() as nats, pytest.raises(ConnectionError, match="without JetStream"):
        await probe(nats.url)


async def test_a_wrong_password_is_reported() -> None:
    with Guarded() as nats:
        with pytest.raises(ConnectionError, match="Authorization Violation"):
            await probe(nats.url.replace("//", "//ada:wrong@"))
        assert (await probe(nats.url.replace("//", "//ada:right@"))).version[0] == 2
