"""The shapes of messages."""
