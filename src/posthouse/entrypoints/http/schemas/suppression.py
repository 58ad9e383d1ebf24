"""The shapes of suppressions."""
