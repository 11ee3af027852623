"""The algorithms: one module each, sharing functions, never a base class."""
