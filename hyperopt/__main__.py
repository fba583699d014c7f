"""The command line in the interpreter at hand: the console script `hyperopt`, and `python -m hyperopt`."""

import sys


def main() -> None:
    """Ctrl-C is one line and 130 also while the command line itself is being loaded, which takes a moment."""
    try:
        from hyperopt.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.stderr.write("hyperopt: interrupted\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
