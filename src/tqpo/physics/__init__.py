"""Planar rigid bodies with MuJoCo's soft contact."""
