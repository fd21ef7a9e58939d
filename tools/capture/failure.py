"""What the user can do something about."""


class CaptureError(Exception):
    """Printed as one line; exit code 2."""
