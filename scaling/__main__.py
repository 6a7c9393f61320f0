"""``python -m scaling``: the command line where the script ``scaling`` is not on the path."""

from scaling.cli import main

if __name__ == "__main__":
    main()
