"""`python -m normwise` is `normwise`."""

from normwise.cli.main import main

if __name__ == "__main__":
    main()
