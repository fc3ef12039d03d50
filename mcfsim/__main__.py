"""Entry point of ``python -m mcfsim``, the command line."""

from mcfsim.cli import main

if __name__ == "__main__":
    main()
