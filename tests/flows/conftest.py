"""One event loop for all tests, so that connections to a database outlive the test."""

from tests.support.shared_loop import *  # noqa: F403
