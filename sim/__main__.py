"""``python -m sim`` is ``prefixsim``."""

from sim.cli import main

if __name__ == "__main__":
    main()
