"""``python -m agent3``."""

from agent3.cli import main

main()
