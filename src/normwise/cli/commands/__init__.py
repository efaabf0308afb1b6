"""One file for each command; a body imports what it runs."""
