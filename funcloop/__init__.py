"""funcloop: the functional training library for PyTorch."""
