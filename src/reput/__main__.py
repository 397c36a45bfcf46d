"""``python -m reput``."""

from reput.cli.main import main

if __name__ == "__main__":
    main()
