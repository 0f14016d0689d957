"""Entry point of `python -m wings_client.cli`, the `wings` command."""

from wings_client.cli import main

if __name__ == "__main__":
    main()
