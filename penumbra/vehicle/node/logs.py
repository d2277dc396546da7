"""What the rest of Penumbra logs, in the node's log."""

from __future__ import annotations

import logging

from rclpy.impl.rcutils_logger import RcutilsLogger


class RosHandler(logging.Handler):
    """Passes Python's log records on to a ROS logger, which decides what is shown."""

    def __init__(self, logger: RcutilsLogger) -> None:
        super().__init__(logging.DEBUG)
        self._logger = logger

    def emit(self, record: logging.LogRecord) -> None:
        """Log it with the severity it has."""
        text = self.format(record)
        # One line of code each: rclpy refuses to log at two severities from one.
        if record.levelno >= logging.ERROR:
            self._logger.error(text)
        elif record.levelno >= logging.WARNING:
            self._logger.warning(text)
        elif record.levelno >= logging.INFO:
            self._logger.info(text)
        else:
            self._logger.debug(text)

    def install(self) -> None:
        """Take over the log of the package, in place of an earlier node's handler."""
        package = logging.getLogger("penumbra")
        package.handlers = [h for h in package.handlers if not isinstance(h, RosHandler)]
        package.addHandler(self)
        package.setLevel(logging.DEBUG)
