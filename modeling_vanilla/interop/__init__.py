"""Other engines' formats out."""
