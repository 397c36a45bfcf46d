"""Exit codes of the command line."""

EXIT_DAMAGE = 1
EXIT_ERROR = 2
EXIT_INTERRUPTED = 130
