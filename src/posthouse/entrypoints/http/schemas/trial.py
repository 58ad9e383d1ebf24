"""The shapes of test mail and dry runs."""
