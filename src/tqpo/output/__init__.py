"""What a trained run is turned into: figures, videos, a page, files for other programs."""
