"""The command line: what an operator types, translated into one act of a flow, and its answer shown.

Each family of commands has a module. Heavy imports stand inside the commands, so that `--help` and
mistyped commands answer at once.
"""
