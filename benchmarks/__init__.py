"""How fast this is, beside what others have for the same work: `make bench`."""
