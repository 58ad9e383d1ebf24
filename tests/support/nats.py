"""A private NATS server that tests can freeze, wipe and restart."""

import os
import shutil
import signal

from tools import private_nats


class PrivateNats(private_nats.PrivateNats):
    def freeze(self) -> None:
        """Connections stay open, nothing is answered."""
        self.running.send_signal(signal.SIGSTOP)
        # On a busy machine its threads may still answer after the signal was sent.
        os.waitid(os.P_PID, self.pid, os.WSTOPPED)

    def thaw(self) -> None:
        self.running.send_signal(signal.SIGCONT)

    def wipe(self) -> None:
        """Deletes the data, whether or not the server runs."""
        shutil.rmtree(self.data, ignore_errors=True)

    def restart(self) -> None:
        self.stop()
        self.start()
