"""Entry point of `python -m bertkit`."""

from bertkit.cli import main

if __name__ == "__main__":
    main()
