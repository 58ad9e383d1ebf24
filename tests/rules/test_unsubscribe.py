"""One-click unsubscribe: which mail offers it, and a token that can't be read or forged."""

import re
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as some

from posthouse.mail.address import ADDRESS_CHARACTERS_MAX
from posthouse.rules.ids import AccountId
from posthouse.rules.refusal import Code, Refusal
from posthouse.rules.unsubscribe import (
    KEY_BYTES,
    LIST_CHARACTERS_MAX,
    TOKEN_CHARACTERS_MAX,
    ListMember,
    UnsubscribeOption,
    not_offered,
    read,
    token,
    unsubscribe_option,
)
from tests.support.bad_input import bad_input

KEY = bytes(range(KEY_BYTES))
ADA = ListMember(AccountId(UUID(int=7)), "news", "ada@example.org")
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"


@pytest.mark.parametrize(
    ("tags", "header", "has_own", "chosen"),
    [
        ([], None, False, UnsubscribeOption(None, False)),
        (["welcome"], None, False, UnsubscribeOption(None, False)),
        (["list:news"], None, False, UnsubscribeOption("news", False)),
        (["list:News_1.a-b", "welcome"], None, False, UnsubscribeOption("News_1.a-b", False)),
        (["list:news", "list:news"], None, False, UnsubscribeOption("news", False)),
        # Without the option for a link, a tag is just a tag.
        (["list:news", "list:offers"], None, False, UnsubscribeOption(None, False)),
        (["list:", "list:ü"], None, False, UnsubscribeOption(None, False)),
        (["list:a b"], None, False, UnsubscribeOption(None, False)),
        (["lists:news", "LIST:news"], None, False, UnsubscribeOption(None, False)),
        (["list:news", "one-click-unsubscribe"], None, False, UnsubscribeOption("news", True)),
        (["list:news"], "one-click", False, UnsubscribeOption("news", True)),
        (["list:news"], " One-Click ", False, UnsubscribeOption("news", True)),
        (["list:news", "one-click-unsubscribe"], "one-click", False, UnsubscribeOption("news", True)),
        (["list:news"], "one-click", True, UnsubscribeOption("news", False)),
        (["list:" + "x" * 64, "one-click-unsubscribe"], None, False, UnsubscribeOption("x" * 64, True)),
    ],
)
def test_the_option_of_a_message(tags: list[str], header: str | None, has_own: bool, chosen: UnsubscribeOption) -> None:
    assert unsubscribe_option(tags, header, has_own=has_own) == chosen


@pytest.mark.rule("UNSUB-02")
@pytest.mark.parametrize("has_own", [False, True])
@pytest.mark.parametrize(
    ("tags", "header", "said"),
    [
        ([], "one-click", "one tag `list:<name>`"),
        (["one-click-unsubscribe"], None, "one tag `list:<name>`"),
        (["list:", "one-click-unsubscribe"], None, "1 to 64"),
        (["list:a b"], "one-click", "1 to 64"),
        (["list:" + "x" * 65], "one-click", "1 to 64"),
        (["list:news\n"], "one-click", "1 to 64"),
        (["list:news", "list:offers"], "one-click", "it has 2"),
        (["list:news"], "two-clicks", "takes `one-click` only"),
        (["list:news"], "", "takes `one-click` only"),
    ],
)
def test_an_impossible_option_is_refused_with_advice(
    tags: list[str], header: str | None, said: str, has_own: bool
) -> None:
    with pytest.raises(Refusal, match=f"^invalid_request: .*{re.escape(said)}"):
        unsubscribe_option(tags, header, has_own=has_own)


@pytest.mark.rule("UNSUB-03")
def test_without_a_public_url_the_refusal_names_the_operator() -> None:
    assert not_offered().code is Code.INVALID_REQUEST
    assert "public_url" in not_offered().text


def test_an_address_has_one_token() -> None:
    assert token(ADA, KEY) == token(ADA._replace(email="Ada@Example.ORG"), KEY)


def test_the_longest_token_fits_a_line() -> None:
    longest = ListMember(AccountId(uuid4()), "x" * LIST_CHARACTERS_MAX, "y" * ADDRESS_CHARACTERS_MAX)
    assert len(token(longest, KEY)) == TOKEN_CHARACTERS_MAX == 468
    assert read(token(longest, KEY), KEY) == longest


@pytest.mark.parametrize(
    "other",
    [
        ADA._replace(account_id=AccountId(UUID(int=8))),
        ADA._replace(mailing_list="new"),
        ADA._replace(email="ada@example.com"),
        # The border between a list and an address can't be moved.
        ADA._replace(mailing_list="newsa", email="da@example.org"),
    ],
)
def test_another_account_list_or_address_has_another_token(other: ListMember) -> None:
    assert token(other, KEY) != token(ADA, KEY)
    assert read(token(other, KEY), KEY) == other


def test_a_token_reveals_nothing_without_the_key() -> None:
    assert read(token(ADA, KEY), bytes(KEY_BYTES)) is None
    assert set(token(ADA, KEY)) <= set(ALPHABET)


def test_an_altered_token_is_refused() -> None:
    good = token(ADA, KEY)
    # In the last place too, where some of the digit's bits say nothing.
    altered = {good[:place] + other + good[place + 1 :] for place in range(len(good)) for other in ALPHABET} - {good}
    altered |= {part for end in range(len(good)) for part in (good[:end], good[end + 1 :])}
    for odd in ("=", "A", "AA", "\n", " ", ".", "é"):
        altered |= {good + odd, odd + good, good[:9] + odd + good[9:]}
    assert [text for text in altered if read(text, KEY) is not None] == []


@bad_input("Unsubscribe links and forms", 500)
@given(some.text(max_size=600) | some.text(ALPHABET, max_size=600))
def test_any_other_text_is_not_a_token(given_as: str) -> None:
    assert read(given_as, KEY) is None


addresses = some.text("abcXYZ09._+-@", max_size=ADDRESS_CHARACTERS_MAX)
lists = some.text("abcXYZ09._-", min_size=1, max_size=LIST_CHARACTERS_MAX)


@given(some.uuids().map(AccountId), lists, addresses)
def test_any_list_member_is_read_back(account_id: AccountId, mailing_list: str, email: str) -> None:
    member = ListMember(account_id, mailing_list, email.lower())
    assert read(token(member, KEY), KEY) == member
