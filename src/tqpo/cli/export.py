"""`tqpo export`."""

import dataclasses

from tqpo.cli.common import File, Folder, Number


@dataclasses.dataclass
class Export:
    """Write a trained policy as one file for other programs, with a model card beside it.

    For example: tqpo export runs/SimpleEnv-tqpo-90 --to onnx
    """

    run: Folder
    """The folder that training wrote, or a policy that came with the package, such as SimpleEnv-90."""
    to: str = "onnx"
    """onnx, or stablehlo for JAX and XLA."""
    seed: Number = None
    """Which seed's policy; by default the first."""
    out: File = None
    """The file to write; the card has the same name and .md. By default export/seed-N.onnx or .stablehlo in the run,
    and NAME.onnx or .stablehlo in the current folder for a policy that came with the package."""

    def __call__(self) -> None:
        from tqpo.output.export import export

        for path in export(self.run, self.to, self.seed, self.out):
            print(path)
