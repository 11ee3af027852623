"""What can go wrong between this process and environments in another Python."""

from tqpo.errors import TqpoError


class BridgeError(TqpoError, RuntimeError):
    """Base of every error of the bridge."""


class InterpreterError(BridgeError):
    """The other Python cannot be started."""


class ServerDiedError(BridgeError):
    """The process with the environments ended by itself: says how, with the last lines that it wrote."""


class BridgeTimeoutError(BridgeError, TimeoutError):
    """The process with the environments did not answer in time; it was ended."""


class ProtocolError(BridgeError):
    """The other side does not speak the protocol of docs/bridge.md."""


class VersionError(ProtocolError):
    """The other side speaks another version of the protocol."""


class HostedEnvironmentError(BridgeError):
    """Environment `index` of a batch raised an exception; its process lives on, and a reset of the batch goes on."""

    def __init__(self, index: int, message: str, traceback: str):
        super().__init__(f"environment {index} raised: {message}\n{traceback}".rstrip())
        self.index, self.traceback = index, traceback
