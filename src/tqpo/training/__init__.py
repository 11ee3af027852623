"""A job from its settings to a chosen policy: one program over all seeds, logged, checkpointed, resumable."""
