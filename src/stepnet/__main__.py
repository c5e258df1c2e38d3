"""`python -m stepnet ...`: the command line."""

from stepnet.cli.commands import main

if __name__ == "__main__":
    main()
