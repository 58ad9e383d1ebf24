"""The shapes of login, logout, password and second factor."""
