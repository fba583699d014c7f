"""`python -m hyperopt`: the command line in the interpreter at hand, for whoever starts it as a child."""

from hyperopt.cli import main

main()
