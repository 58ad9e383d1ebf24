"""Repair without SQL, on the command line: the queue, lanes, messages, webhooks, the ledger, sessions, the log."""

import asyncio
import json

from typer.testing import Result

from posthouse.rules import ids
from tests.cli.conftest import Type
from tests.support.delivery_steps import DeliverySteps


def answer(done: Result) -> dict[str, object]:
    values: dict[str, object] = json.loads(done.stdout)
    return values


async def in_thread(typed: Type, *words: str, status: int = 0) -> Result:
    """Commands run their own event loop."""
    return await asyncio.to_thread(typed, *words, status=status)


async def test_mail_is_held_released_and_cancelled_with_a_count_to_confirm(steps: DeliverySteps, typed: Type) -> None:
    message = ids.text(ids.MESSAGE, await steps.accept(["a@example.org", "b@example.org"]))
    by = ("--destination", "example.org")
    assert (
        "2 recipients would be held (1 messages, 1 accounts)"
        in (await in_thread(typed, "queue", "hold", *by, "--dry-run")).stdout
    )
    # Without a person to ask, nothing is changed.
    assert "confirm it with --yes" in (await in_thread(typed, "queue", "hold", *by, status=1)).stderr
    assert "2 recipients are held until" in (await in_thread(typed, "queue", "hold", *by, "--yes")).stdout
    explained = (await in_thread(typed, "message", "explain", message)).stdout
    assert "the operator of this service holds it" in explained
    assert f"`posthouse queue release --message {message}` releases it." in explained
    assert answer(await in_thread(typed, "queue", "release", "--message", message, "--yes", "--json")) == {
        "recipients": 2, "being_tried": 0,
    }  # fmt: skip
    cancelled = await in_thread(typed, "queue", "cancel", "--older-than", "0s", "--yes")
    assert "2 recipients are cancelled" in cancelled.stdout
    assert "0 recipients would be cancelled" in (await in_thread(typed, "queue", "cancel", *by)).stdout
    explained = (await in_thread(typed, "message", "explain", message)).stdout
    assert "a@example.org: failed" in explained
    assert "The operator of this service cancelled the message: it was cancelled by the operator" in explained
    assert "The ledger agrees" in (await in_thread(typed, "ledger", "verify")).stdout
    rows = json.loads((await in_thread(typed, "log", "--json")).stdout)
    assert [row["action"] for row in rows][:3] == ["queue.cancel", "queue.release", "queue.hold"]
    assert rows[0]["target"] == "older than 0s"
    assert {"account.created", "credits.granted"} & {row["action"] for row in rows}
    assert "which mail" in (await in_thread(typed, "queue", "cancel", "--yes", status=1)).stderr
    assert "no length of time" in (await in_thread(typed, "queue", "retry", "--older-than", "x", status=1)).stderr


async def test_mail_held_since_a_restore_is_shown_and_released(steps: DeliverySteps, typed: Type) -> None:
    assert "No restore was noticed" in (await in_thread(typed, "restore", "show")).stdout
    message = ids.text(ids.MESSAGE, await steps.accept(["a@example.org", "b@example.net"]))
    assert "stop them" in (await in_thread(typed, "restore", "begin", status=1)).stderr
    await steps.fetch("DELETE FROM workers RETURNING 1")
    assert "2 recipients are held" in (await in_thread(typed, "restore", "begin")).stdout
    shown = answer(await in_thread(typed, "restore", "show", "--json"))
    assert (shown["recipients"], shown["messages"], shown["tried_before"]) == (2, 1, 0)
    assert shown["ages"][0] == {"accepted within": "10 minutes", "recipients": 2}  # type: ignore[index]
    assert "example.net" in (await in_thread(typed, "restore", "show")).stdout
    explained = (await in_thread(typed, "message", "explain", message)).stdout
    assert "the service's database was restored" in explained
    assert f"`posthouse restore release --message {message}` releases it." in explained
    by = ("--destination", "example.org")
    assert "1 recipient would be released" in (await in_thread(typed, "restore", "release", *by, "--dry-run")).stdout
    assert "1 recipient is released" in (await in_thread(typed, "restore", "release", *by, "--yes")).stdout
    assert "1 recipient is released" in (await in_thread(typed, "restore", "release", "--yes")).stdout
    rows = json.loads((await in_thread(typed, "log", "--json")).stdout)
    assert [(row["action"], row["target"]) for row in rows][:3] == [
        ("queue.release_restored", "all"), ("queue.release_restored", "destination example.org"),
        ("restore.held", "database"),
    ]  # fmt: skip


async def test_a_ledger_that_does_not_agree_ends_the_command_with_1(steps: DeliverySteps, typed: Type) -> None:
    await steps.fetch("UPDATE accounts SET available = available + 1 RETURNING 1")
    done = await in_thread(typed, "ledger", "verify", status=1)
    assert "does not agree" in done.stdout
    assert "credits are available" in done.stdout


def test_lanes_are_paused_listed_and_resumed(typed: Type) -> None:
    assert "No lane has mail" in typed("lane", "list").stdout
    assert "is paused in every worker" in typed("lane", "pause", "google", "--reason", "their outage").stdout
    typed("lane", "pin", "yahoo", "--rate", "2")
    google, yahoo = json.loads(typed("lane", "list", "--json").stdout)
    assert (google["lane"], google["state"], google["reason"]) == ("google", "paused", "their outage")
    assert (yahoo["lane"], yahoo["state"], yahoo["per_second"], yahoo["pinned"]) == ("yahoo", "open", 2.0, True)
    assert "already paused" in typed("lane", "pause", "google", status=1).stderr
    assert "google is resumed" in typed("lane", "resume", "google").stdout
    assert [row["action"] for row in json.loads(typed("log", "--json").stdout)] == [
        "lane.resumed", "lane.pinned", "lane.paused",
    ]  # fmt: skip


def test_sessions_of_no_user_or_without_a_choice_are_refused(typed: Type) -> None:
    typed("account", "create", "Acme")
    typed("user", "invite", "Acme", "ada@example.com")
    assert "There is no user" in typed("session", "list", "ada@example.com", status=1).stderr
    typed("session", "end", "ada@example.com", status=2)


async def test_webhooks_that_failed_are_counted_and_sent_again(steps: DeliverySteps, typed: Type) -> None:
    account = ids.text(ids.ACCOUNT, steps.sender.account_id)
    refused = await in_thread(typed, "webhook", "replay", account, "--failed-since", "2h", status=1)
    assert "has no webhook" in refused.stderr
