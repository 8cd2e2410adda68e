"""The programs behind the commands; each reads from top to bottom."""
