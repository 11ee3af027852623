"""The mathematics: one equation, one function. Knows no environment, no network, no file."""
