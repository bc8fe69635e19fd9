"""Other engines' formats out, and the Hub."""
