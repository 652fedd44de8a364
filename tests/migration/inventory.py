"""What the other clients have, by the heading of the page: none of it may be missing there."""

from __future__ import annotations

__all__ = ["THEIRS"]

_JAVA = """
dynamoDBClient tableName partitionKeyName sortKeyName ownerName leaseDuration heartbeatPeriod timeUnit createHeartbeatBackgroundThread
holdLockOnServiceUnavailable maxLockObservationCacheSize namedThreadCreator partitionKey sortKey data replaceData deleteLockOnRelease
acquireOnlyIfLockAlreadyExists refreshPeriod additionalTimeToWaitForLock additionalAttributes updateExistingLockRecord
shouldSkipBlockingWait acquireReleasedLocksConsistently reentrant sessionMonitor ReleaseLockOptions.deleteLock
safeTime ReleaseLockOptions.bestEffort ReleaseLockOptions.data SendHeartbeatOptions.data
SendHeartbeatOptions.deleteData provisionedThroughput
SendHeartbeatOptions.leaseDurationToEnsure GetLockOptions CreateDynamoDBTableOptions acquireLock tryAcquireLock hasLock getLock
getLockFromDynamoDB getAllLocksFromDynamoDB getLocksByPartitionKey releaseLock sendHeartbeat lockTableExists assertLockTableExists
createLockTableInDynamoDB close getPartitionKey getSortKey getData getAdditionalAttributes getOwnerName getLookupTime
getRecordVersionNumber getLeaseDuration getDeleteLockItemOnClose isExpired sendHeartBeat ensure amIAboutToExpire updateLookUpTime
LockItem.close LockNotGrantedException LockCurrentlyUnavailableException LockTableDoesNotExistException SessionMonitorNotSetException
IllegalArgumentException IllegalStateException SdkClientException
"""
_MONGO = (
    "LOCK_DATABASE_NAME LOCK_COLLECTION_NAME createLockTable ReadPreference.nearest getAllLocksFromDB lastUpdatedTime"
)
_NODE = """
FailOpen FailClosed dynamodb lockTable partitionKey sortKey leaseDurationMs heartbeatPeriodMs owner acquirePeriodMs retryCount
trustLocalTime
acquireLock lock.release lock.fencingToken
"""
_GO = """
New WithPartitionKeyName WithSortKey WithOwnerName WithLeaseDuration WithHeartbeatPeriod DisableHeartbeat WithLogger WithContextLogger
WithData ReplaceData FailIfLocked WithDeleteLockOnRelease WithRefreshPeriod WithAdditionalTimeToWaitForLock WithAdditionalAttributes
WithSessionMonitor SendHeartbeat DeleteData ReplaceHeartbeatData HeartbeatRetries UnsafeMatchOwnerOnly WithDeleteLock
WithDataAfterRelease Get Client.Close CreateTable WithProvisionedThroughput WithTags WithCustomPartitionKeyName
WithSortKeyName Lock.Data Lock.OwnerName Lock.AdditionalAttributes Lock.IsExpired Lock.IsAlmostExpired
Lock.Close cmd/lock
"""
_PYTHON = """
dynamodb_resource table_name partition_key_name sort_key_name ttl_attribute_name owner_name heartbeat_period safe_period lease_duration
expiry_period heartbeat_tps app_callback_executor app_callback acquire_lock retry_period retry_timeout additional_attributes
create_dynamodb_table CLIENT_SHUTDOWN ACQUIRE_TIMEOUT LOCK_NOT_OWNED LOCK_STOLEN LOCK_IN_DANGER UNKNOWN
release(best_effort) close(release_locks)
"""
_REDIS = """
name timeout blocking blocking_timeout sleep thread_local acquire release extend reacquire locked owned LockNotOwnedError LockError
"""

THEIRS: dict[str, list[str]] = {
    heading: names.split()
    for heading, names in {
        "Java: ": _JAVA,
        "MongoDB: ": _MONGO,
        "Node: ": _NODE,
        "Go: ": _GO,
        "Python: `python-dynamodb-lock`": _PYTHON,
        "Python: the lock of `redis-py`": _REDIS,
    }.items()
}
