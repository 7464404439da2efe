"""What the tests share: `from tests.support.NAME import ...`."""
