"""``python -m scaling.cli``."""

from scaling.cli import main

main()
