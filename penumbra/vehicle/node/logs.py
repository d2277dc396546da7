"""Forwards Python's log records to the node's log."""

from __future__ import annotations

import logging

from rclpy.impl.rcutils_logger import RcutilsLogger

LOG_PERIOD = 10.0  # seconds between two log lines of the same kind


class RosHandler(logging.Handler):
    """Forwards log records to a ROS logger, which filters them by severity."""

    def __init__(self, logger: RcutilsLogger) -> None:
        super().__init__(logging.DEBUG)
        self._logger = logger

    def emit(self, record: logging.LogRecord) -> None:
        """Log a record with its own severity."""
        text = self.format(record)
        # A separate call each: rclpy does not allow two severities from one line.
        if record.levelno >= logging.ERROR:
            self._logger.error(text)
        elif record.levelno >= logging.WARNING:
            self._logger.warning(text)
        elif record.levelno >= logging.INFO:
            self._logger.info(text)
        else:
            self._logger.debug(text)

    def install(self) -> None:
        """Attach to the log of the package, replacing the handler of an earlier node."""
        package = logging.getLogger("penumbra")
        package.handlers = [h for h in package.handlers if not isinstance(h, RosHandler)]
        package.addHandler(self)
        package.setLevel(logging.DEBUG)
