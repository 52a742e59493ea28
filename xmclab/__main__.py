"""`python -m xmclab`: the command line, also for `torchrun -m xmclab`."""

import signal

from xmclab.system.signals import end_at_once


def main() -> None:
    """Run the command line; until its modules are imported, Ctrl-C ends the process without a traceback."""
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, end_at_once)
    from xmclab.cli import main

    if ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    main()


if __name__ == "__main__":
    main()
