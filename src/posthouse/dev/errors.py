"""The error that ends `posthouse dev`."""


class DevError(RuntimeError):
    """`posthouse dev` can't go on; the text says what to do."""
