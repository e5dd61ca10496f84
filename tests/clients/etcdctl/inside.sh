#!/bin/sh
# What `etcdctl lock NAME sh inside.sh COUNTER` runs while it has the lock: COUNTER goes up by one.
#
# It makes a file that must not be there yet. Without mutual exclusion increments are lost, and the file is found. The
# revision that etcdctl exports is a token like ours: it must be above the last one.
set -eu
set -C
: >"$1.inside"
set +C
number=$(cat "$1")
token=$(cat "$1.token")
if [ "$ETCD_LOCK_REV" -le "$token" ]; then
    echo "etcdctl was let in with revision $ETCD_LOCK_REV after token $token" >&2
    exit 1
fi
echo "$ETCD_LOCK_REV" >"$1.token"
echo "$((number + 1))" >"$1"
rm "$1.inside"
