#!/bin/sh
# A shell script that only one host runs at a time. In crontab: 0 3 * * * DLOCK_URL=... dlock run --skip-if-held nightly -- make report
dlock run --timeout 1m --lease 10s deploy -- sh -c 'echo "deploying as holder of $DLOCK_KEY"'
