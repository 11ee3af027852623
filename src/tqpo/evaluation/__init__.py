"""A frozen policy in fresh episodes, and what those say."""
