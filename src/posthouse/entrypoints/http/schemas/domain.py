"""The shapes of domains."""
