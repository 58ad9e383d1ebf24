"""The first steps of a new account, each known by what it left behind."""

from enum import StrEnum


class Step(StrEnum):
    """In the order in which an account usually takes them."""

    TEST_MAIL = "test_mail"
    DOMAIN_VERIFIED = "domain_verified"
    KEY_CREATED = "key_created"
    FIRST_REQUEST = "first_request"
    WEBHOOK_SAVED = "webhook_saved"
    WEBHOOK_ANSWERED = "webhook_answered"
    SECOND_FACTOR = "second_factor"
    MEMBER_INVITED = "member_invited"
