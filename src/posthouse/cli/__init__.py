"""The command line: each command calls a flow and prints its result.

Each family of commands has a module. Heavy imports stand inside the commands, so that `--help` and
mistyped commands answer at once.
"""
