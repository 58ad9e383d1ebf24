"""`posthouse`, or `python -m posthouse`."""

from posthouse.entrypoints.cli.app import app


def main() -> None:
    app()


if __name__ == "__main__":
    main()
