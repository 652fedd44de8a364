"""What the tests of the DynamoDB store share."""

from __future__ import annotations

from collections.abc import Callable

from dlock_dynamodb import DynamoDBStore

OpenStore = Callable[..., DynamoDBStore]
