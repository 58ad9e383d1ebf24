"""A private NATS server that tests can freeze, wipe and restart."""

import shutil
import signal

from tools import private_nats


class PrivateNats(private_nats.PrivateNats):
    def freeze(self) -> None:
        """Connections stay open, nothing is answered."""
        self.running.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.running.send_signal(signal.SIGCONT)

    def wipe(self) -> None:
        """Deletes the data, whether or not the server runs."""
        shutil.rmtree(self.data, ignore_errors=True)

    def restart(self) -> None:
        self.stop()
        self.start()
