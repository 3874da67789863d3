"""`python -m torchfl.cli`, the same as `torchfl`."""

from torchfl.cli import main

main()
