"""The shapes of the team and the log of what it changed."""
