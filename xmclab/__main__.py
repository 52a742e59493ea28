"""`python -m xmclab`: the command line, also for `torchrun -m xmclab`."""

from xmclab.cli import main

if __name__ == "__main__":
    main()
