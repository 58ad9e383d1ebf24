"""Every limit of the API contract, and our own bounds."""

from typing import Final

MIB: Final = 1024 * 1024
GIB: Final = 1024 * MIB

# The send request.
SUBJECT_CHARACTERS_MAX: Final = 500
RECIPIENTS_MAX: Final = 50
# Of one field, duplicates included.
RECIPIENTS_GIVEN_MAX: Final = 20 * RECIPIENTS_MAX
MIME_BYTES_MAX: Final = 10 * MIB
# A 10 MiB message whose attachments are base64 in JSON strings needs more space than that.
HTTP_BODY_BYTES_MAX: Final = 16 * MIB
ATTACHMENTS_MAX: Final = 20
FILENAME_CHARACTERS_MAX: Final = 255
CONTENT_TYPE_CHARACTERS_MAX: Final = 255
CONTENT_ID_CHARACTERS_MAX: Final = 128
TAGS_MAX: Final = 20
TAG_CHARACTERS_MAX: Final = 128
METADATA_MAX: Final = 20
METADATA_VALUE_CHARACTERS_MAX: Final = 500
VARIABLES_MAX: Final = 32
SEND_AT_DAYS_MAX: Final = 30
HEADERS_MAX: Final = 50
HEADER_NAME_CHARACTERS_MAX: Final = 76
HEADER_VALUE_BYTES_MAX: Final = 998
HEADERS_BYTES_MAX: Final = 16 * 1024
# RFC 5321: 64 octets of local part, 255 of domain, 254 for the path as a whole.
ADDRESS_CHARACTERS_MAX: Final = 254

# After SIGTERM, requests, SMTP sessions and deliveries that have begun may continue for DRAIN_SECONDS_MAX; then the
# process records what it knows and closes its connections. The files in deploy/ kill it after STOP_SECONDS_MAX.
DRAIN_SECONDS_MAX: Final = 15
STOP_SECONDS_MAX: Final = 40

# An account's endpoints.
ENDPOINTS_MAX: Final = 10
ENDPOINT_HEADERS_MAX: Final = 5
ENDPOINT_HEADER_CHARACTERS_MAX: Final = 1_000
ENDPOINT_DOMAINS_MAX: Final = 20

# Idempotency.
IDEMPOTENCY_KEY_CHARACTERS_MAX: Final = 255
IDEMPOTENCY_LIFETIME_SECONDS: Final = 24 * 3600

# Rates.
RATE_PER_SECOND: Final = 20
RATE_BURST: Final = 40
# Recipients, next to requests: what a message costs depends on them. A burst of the largest messages still passes.
RECIPIENTS_PER_REQUEST: Final = 25
RECIPIENTS_PER_BURST_REQUEST: Final = RECIPIENTS_MAX
# A recipient of test mail counts as this many, since it costs no credit.
TEST_RECIPIENT_WEIGHT: Final = 2
# Bytes of assembled messages that an account stores on a UTC day, and the part of them that test mail may use: a leaked
# test key must not stop the account's live mail.
STORED_BYTES_PER_DAY: Final = 10 * GIB
STORED_TEST_PART: Final = 10
# An account's changes under /v1: far above what people and deployments need.
WRITES_PER_SECOND: Final = 10
WRITES_BURST: Final = 60
WARMUP_RECIPIENTS_BY_DAY: Final = (
    200, 300, 500, 750, 1_000, 1_500, 2_000, 3_000, 5_000, 7_500, 10_000, 15_000, 25_000, 50_000,
)  # fmt: skip

# Templates.
TEMPLATE_PART_CHARACTERS_MAX: Final = 256 * 1024
# Rendering happens before anything is charged, so placeholders per part are bounded.
TEMPLATE_PLACEHOLDERS_MAX: Final = 1_000
# The `variables` of a request whose template has the engine `handlebars`; the object itself is the first level.
VARIABLES_BYTES_MAX: Final = 64 * 1024
VARIABLES_LEVELS_MAX: Final = 8
TEMPLATES_MAX: Final = 1_000
TEMPLATE_NAME_CHARACTERS_MAX: Final = 200
TEMPLATE_VERSION_MAX: Final = 2**31 - 1
# Stored versions of a template, and bytes of all templates of an account.
TEMPLATE_VERSIONS_MAX: Final = 100
TEMPLATES_BYTES_MAX: Final = 256 * MIB

# Credentials.
JWT_LIFETIME_SECONDS: Final = 12 * 3600
# How long links and return paths in sent mail should work.
OLD_LINK_DAYS: Final = 30
# A remembered session: the lifetime of its tokens, of the session unless it is renewed, and of the session in all.
RENEWED_TOKEN_SECONDS: Final = 15 * 60
REMEMBERED_SESSION_IDLE_SECONDS: Final = 7 * 24 * 3600
REMEMBERED_SESSION_SECONDS_MAX: Final = 30 * 24 * 3600
# Two tabs may renew at the same moment, and a response may get lost.
RENEWAL_GRACE_SECONDS: Final = 60
LOGIN_LINK_SECONDS: Final = 600
SESSIONS_PER_USER_MAX: Final = 100
CONTROL_CACHE_SECONDS: Final = 4
PASSWORD_CHARACTERS_MIN: Final = 12
PASSWORD_CHARACTERS_MAX: Final = 256
CREDENTIALS_MAX: Final = 100
KEYS_MAX: Final = 1_000
KEY_DOMAINS_MAX: Final = 20
# High enough for every use: a rotated key gets its full lifetime again.
KEY_DAYS_MAX: Final = 3_660
# Long enough to look up which key an entry in an old log names.
KEYS_ENDED_DAYS: Final = 90
OVERLAP_SECONDS: Final = 24 * 3600
OVERLAP_SECONDS_MAX: Final = 7 * 24 * 3600
# Precision of a secret's last-used time.
LAST_USED_SECONDS: Final = 60
LAST_USED_MAX: Final = 100_000

# The team.
MEMBERS_MAX: Final = 100
INVITATIONS_MAX: Final = 100
INVITATION_LIFETIME_SECONDS: Final = 7 * 24 * 3600
PASSWORD_RESET_SECONDS: Final = 3600
USER_AGENT_CHARACTERS_MAX: Final = 200
AUDIT_LOG_DAYS: Final = 400
# How long limit changes are stored; a lane that has not changed for this long starts again.
LIMIT_CHANGES_DAYS: Final = 90

# Accepting, claiming and recording: the size of a group commit, and of the queue for the next one. A recipient takes
# 0.025 ms to accept and up to 0.14 ms to claim or record, so that no transaction lasts much longer than 50 ms.
GROUP_COMMIT_ITEMS_MAX: Final = 100
GROUP_COMMIT_RECIPIENTS_MAX: Final = 250
# While several accounts wait: two of the largest messages, and a few single recipients.
GROUP_COMMIT_RECIPIENTS_SHARED_MAX: Final = 125
GROUP_COMMIT_BYTES_MAX: Final = 16 * MIB
WAITING_ITEMS_MAX: Final = 2_000
WAITING_BYTES_MAX: Final = 256 * MIB
# Above this a body is parsed and written in a thread, so that the event loop stays responsive.
THREAD_BODY_BYTES_MIN: Final = 256 * 1024

# A batch request: its emails, and the bytes of their assembled messages: in all, and where all share one transaction.
BATCH_EMAILS_MAX: Final = 500
# As given, duplicates included. Every rate admits this many in one burst, with a test key too.
BATCH_RECIPIENTS_MAX: Final = 1_000
BATCH_ENTRIES_MAX: Final = 100_000
BATCH_BYTES_MAX: Final = 128 * MIB
BATCH_ALL_BYTES_MAX: Final = 32 * MIB
# This many emails of a batch request count as one request of the account's rate.
BATCH_EMAILS_PER_REQUEST: Final = 25
# A resend of named messages examines all of them in one step.
RESEND_MESSAGES_MAX: Final = 500

# Domains.
DOMAIN_RECHECK_SECONDS: Final = 24 * 3600
DOMAIN_GRACE_SECONDS: Final = 7 * 24 * 3600
DOMAINS_MAX: Final = 1_000
# Domains that an account adds and keys that it rotates; each needs an RSA key.
DOMAIN_KEYS_PER_MINUTE: Final = 10
DOMAIN_KEYS_BURST: Final = 20
# New keys start to sign within this time after their record is published.
DOMAIN_PENDING_RECHECK_SECONDS: Final = 3600
DOMAIN_KEYS_RETIRED_SECONDS: Final = 7 * 24 * 3600
DOMAIN_KEYS_RETIRED_MAX: Final = 10
# Protects name servers from floods: seconds between checks of a domain, and checks per account in that time.
DOMAIN_ASKED_SECONDS: Final = 5
DOMAINS_ASKED_MAX: Final = 20
DOMAIN_CHECK_SECONDS_MAX: Final = 4.0

# Partitions.
PARTITION_DAYS_AHEAD: Final = 7

# Logins: this many failures in a row count as typing errors; then the wait doubles.
LOGIN_FAILURES_FREE: Final = 4
LOGIN_WAIT_SECONDS_MAX: Final = 900
# Failures from a network, or for an address from elsewhere, delay further logins and refuse none.
LOGIN_NETWORK_FAILURES_FREE: Final = 40
LOGIN_DELAY_SECONDS_MIN: Final = 0.1
LOGIN_DELAY_SECONDS_MAX: Final = 2.0

# The Authorization header: far longer than our tokens, far shorter than a value that would be slow to decode.
AUTHORIZATION_CHARACTERS_MAX: Final = 8 * 1024

# A template's variables: integers no larger than a double can represent.
VARIABLE_NUMBER_BITS_MAX: Final = 1024

# A request that waits for a message ends before the time-outs of usual clients and proxies: 30 s and more.
NEXT_MESSAGE_SECONDS_MAX: Final = 25
