"""``python -m agent3``."""

from agent3.cli.main import main

main()
