"""One update, number for number: the authors' released code beside this package.

`theirs` runs the released code on a fixed batch and keeps what it says (tests/data/released.npz). `ours` runs this package on
the same batch and says where the two agree. None of the authors' code is in this repository: `theirs` takes checkouts of it.

    git clone https://github.com/CharlieLeeeee/TQPO; git clone https://github.com/wyjung0625/QCPO
    git clone https://github.com/astooke/rlpyt
    python -m reference.released.theirs TQPO QCPO rlpyt      # a Python with NumPy and PyTorch; this package is not needed
    python -m reference.released.ours --page docs/reproduction.md
"""
