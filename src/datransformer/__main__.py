"""``python -m datransformer``, which is how torchrun starts the command line."""

from datransformer.cli import main

if __name__ == "__main__":
    main()
