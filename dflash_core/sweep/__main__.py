"""`python -m dflash_core.sweep`."""

from .command import main

main()
