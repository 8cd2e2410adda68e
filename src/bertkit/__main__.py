"""`python -m bertkit` is `bertkit`."""

from bertkit.cli import main

if __name__ == "__main__":
    main()
