"""The shapes of credentials and keys."""
