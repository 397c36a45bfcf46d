"""``python -m reput``."""

from reput.cli import main

if __name__ == "__main__":
    main()
