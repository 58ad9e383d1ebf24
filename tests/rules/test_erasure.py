"""What replaces an erased address: the hash, and an event's body."""

import json

from posthouse.rules.erasure import ErasureKey, blanked, hash_of, hashes_of, is_in

FIRST, SECOND = ErasureKey(b"", b"a" * 32), ErasureKey(b"2027:", b"b" * 32)
BODY = (
    b'{"id":"ev_1","type":"email.bounced","created_at":"2026-11-18T00:00:00.000Z","data":{"email_id":"em_1",'
    b'"recipient_id":"rc_1","to":"Ada@Example.net","from":"a@b.example","subject":"Hi","mode":"live","tags":["x"]}}'
)


def test_a_hash_depends_on_the_key_and_not_on_the_case() -> None:
    assert hash_of("Ada@Example.net", FIRST) == hash_of("ada@example.net", FIRST)
    assert len({hash_of("ada@example.net", key) for key in (FIRST, SECOND)}) == 2
    assert [len(found) for found in hashes_of("ada@example.net", [SECOND, FIRST])] == [32 + 5, 32]
    assert hash_of("ada@example.net", SECOND).startswith(b"2027:")


def test_an_erased_event_says_which_message_it_is_about_and_nothing_else() -> None:
    assert is_in(BODY, "ada@example.net")
    assert not is_in(BODY, "bob@example.net")
    erased = json.loads(blanked(BODY))
    assert erased["data"] == {"email_id": "em_1", "recipient_id": "rc_1", "mode": "live", "erased": True}
    assert (erased["id"], erased["type"]) == ("ev_1", "email.bounced")
    assert not is_in(blanked(BODY), "ada@example.net")
    assert b'"erased":true' in blanked(BODY)
    assert blanked(blanked(BODY)) == blanked(BODY)
