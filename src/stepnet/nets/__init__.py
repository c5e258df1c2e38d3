"""Networks as steps: what they are measured by."""

from stepnet.nets import losses, penalties

__all__ = ["losses", "penalties"]
