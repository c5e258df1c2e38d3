"""Support for `torch.compile`."""
