"""The command line: one module a verb, each a thin reading of arguments around the package."""
