"""The paper's runs: trained, evaluated, judged by MuJoCo, and laid beside its numbers."""
