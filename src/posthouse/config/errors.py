"""The error that every fault in the settings becomes."""


class ConfigError(Exception):
    """The settings can't be used; the text names the setting and what to do."""
