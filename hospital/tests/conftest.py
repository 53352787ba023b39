"""What every test gets: no network beyond this machine, and the folder of real test data."""

from tests.conftest import loopback_only, test_data

__all__ = ["loopback_only", "test_data"]
