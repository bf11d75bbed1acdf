"""`python -m diagonal` is the command `diagonal`."""

from __future__ import annotations

from diagonal.cli import main

if __name__ == "__main__":
    main()
